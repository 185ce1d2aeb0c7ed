"""The operators, one file per family. Importing this package fills the registry."""

from gpuexec.ops import batch_norm as batch_norm
from gpuexec.ops import conv as conv
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
from gpuexec.ops import lp_norm as lp_norm
from gpuexec.ops import matmul as matmul
from gpuexec.ops import norm as norm
from gpuexec.ops import pad as pad
from gpuexec.ops import pool as pool
from gpuexec.ops import reduce as reduce
from gpuexec.ops import resize as resize
from gpuexec.ops import rnn as rnn
from gpuexec.ops import shape as shape
from gpuexec.ops import slice as slice
from gpuexec.ops import softmax as softmax
