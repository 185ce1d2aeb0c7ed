"""Sessions and values by the module that ONNX Runtime has them in."""

from gpuexec.compat.onnxruntime.binding import IOBinding as IOBinding
from gpuexec.compat.onnxruntime.devices import OrtDevice as OrtDevice
from gpuexec.compat.onnxruntime.session import InferenceSession as InferenceSession
from gpuexec.compat.onnxruntime.values import OrtValue as OrtValue
