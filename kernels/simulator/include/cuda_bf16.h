// Stand-in for CUDA's header: half and bfloat16 are always there in the simulator.
#pragma once
