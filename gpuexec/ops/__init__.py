"""The operators, one file per family. Importing this package fills the registry."""

from gpuexec.ops import copy as copy
from gpuexec.ops import depth_space as depth_space
from gpuexec.ops import elementwise_binary as elementwise_binary
from gpuexec.ops import elementwise_cast as elementwise_cast
from gpuexec.ops import elementwise_pow as elementwise_pow
from gpuexec.ops import elementwise_select as elementwise_select
from gpuexec.ops import elementwise_unary as elementwise_unary
from gpuexec.ops import elementwise_variadic as elementwise_variadic
from gpuexec.ops import gather as gather
from gpuexec.ops import layout as layout
from gpuexec.ops import pad as pad
from gpuexec.ops import shape as shape
from gpuexec.ops import slice as slice
