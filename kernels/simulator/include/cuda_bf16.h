// Half and bfloat16 are always there in the simulator; this file lets kernels include CUDA's header by its name.
#pragma once
