// Stand-in for CUDA's header, with the pipeline primitives.
#pragma once
#include <cuda_pipeline_primitives.h>
