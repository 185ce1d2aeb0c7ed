"""The operators of com.microsoft: what ONNX Runtime's optimizer and quantizers make of a model's own operators."""

from gpuexec.ops.microsoft import attention as attention
from gpuexec.ops.microsoft import cdist as cdist
from gpuexec.ops.microsoft import conv as conv
from gpuexec.ops.microsoft import crop_and_resize as crop_and_resize
from gpuexec.ops.microsoft import decoder as decoder
from gpuexec.ops.microsoft import embedding as embedding
from gpuexec.ops.microsoft import forms as forms
from gpuexec.ops.microsoft import gather_blocks as gather_blocks
from gpuexec.ops.microsoft import gelu as gelu
from gpuexec.ops.microsoft import group_norm as group_norm
from gpuexec.ops.microsoft import grouped as grouped
from gpuexec.ops.microsoft import inverse as inverse
from gpuexec.ops.microsoft import matmul as matmul
from gpuexec.ops.microsoft import matmul_nbits as matmul_nbits
from gpuexec.ops.microsoft import norm as norm
from gpuexec.ops.microsoft import packing as packing
from gpuexec.ops.microsoft import position as position
from gpuexec.ops.microsoft import quantized_attention as quantized_attention
from gpuexec.ops.microsoft import quantized_elementwise as quantized_elementwise
from gpuexec.ops.microsoft import quantized_forms as quantized_forms
from gpuexec.ops.microsoft import quantized_layers as quantized_layers
from gpuexec.ops.microsoft import quantized_lstm as quantized_lstm
from gpuexec.ops.microsoft import quantized_matmul as quantized_matmul
from gpuexec.ops.microsoft import quantized_ordered as quantized_ordered
from gpuexec.ops.microsoft import renamed as renamed
from gpuexec.ops.microsoft import rotary as rotary
