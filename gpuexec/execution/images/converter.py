"""Asynchronous conversion of images to tensors and back on a device.

transform = gx.ImageTransform(size=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
x = gx.to_tensor(image, transform)               # a Tensor, maybe pending: an input of any Worker
gx.to_tensor(frame, transform, out=x)            # the same bytes again
picture = gx.to_image(y, transform).readback_and_clone()
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend, BackendLike, BackendType, find_backend
from gpuexec.devices.device import Region
from gpuexec.errors import ClosedError, GpuexecError, InputError
from gpuexec.execution.images.transform import ImageTransform, make_step
from gpuexec.execution.replay.replay import Replay
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Lease
from gpuexec.execution.resources.unclosed import warn_unless_closed
from gpuexec.execution.results.arenas import is_on_host, take_memory, wrap_region
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.worker import Worker
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import DeclaredSpec, TensorSpec, dtype_row, is_host_object
from gpuexec.ops.tensor.strided_view import StridedView
from gpuexec.system.pickling import not_picklable

# Transforms of one layout of images that stay recorded, the last ones used.
MAX_RECORDED = 8
_IN, _OUT = "given", "made"
_LEGACY_STREAM = 1


@not_picklable("Make one there.")
class ImageConverter:
    """Converter between images and tensors on one device, which keeps the recordings of recent layouts.

    Calls from several threads come one after the other; none of them waits for the device.

    Args:
        backend: Where.
        device: Its ordinal.

    Example:
        >>> with gx.ImageConverter("cpu") as converter:
        ...     converter.to_tensor(np.zeros((480, 640, 3), np.uint8), gx.ImageTransform(size=(8, 8))).shape
        (1, 3, 8, 8)
    """

    def __init__(self, backend: BackendLike = BackendType.AUTO, *, device: int | None = None) -> None:
        self._backend, _ = find_backend(backend, device)
        self._recorded: OrderedDict[object, tuple[Worker, Replay, TensorSpec]] = OrderedDict()
        self._lock = threading.Lock()
        self._is_closed = False
        self._unclosed = warn_unless_closed(self, "An ImageConverter", "close(), or use `with`")

    def to_tensor(
        self, image: object, transform: ImageTransform | None = None, out: object = None, *, stream: object = None
    ) -> Tensor:
        """Return the tensor of an image, or of a batch, at once; it may be pending.

        Args:
            image: ``[h, w]``, ``[h, w, c]`` or ``[n, h, w, c]`` of uint8, uint16 or float32, of any strides: what NumPy
                reads (copied before this returns), an array of another package on the device (read where it lies, and
                borrowed until then), or a Tensor. On the device, what its stream does is waited for there.
            transform: Conversion of its pixels.
            out: Where to: a Tensor of one's own (made here, or by `Worker.copy_output`), which is returned; a dense
                array of another package on the device, part of a batch too, whose later work comes after ours only on
                ``stream``; a NumPy array of any strides, which is filled before this returns. None: a new Tensor.
            stream: A stream of yours: the work comes after what is on it now, and what you put on it afterwards comes
                after the work.

        Raises:
            InputError: The image, or ``out``, does not fit; says expected and got. Nothing was done.
        """
        strided = _look_at(image, self._backend)
        return self._run(strided, _take_transform(transform)._to_tensor_operator(strided.spec), out, stream)

    def to_image(
        self, tensor: object, transform: ImageTransform | None = None, out: object = None, *, stream: object = None
    ) -> Tensor:
        """Return the image of a tensor at once, as `to_tensor` does.

        Args:
            tensor: Of four axes, or three without the batch, of float32 or float16.
            transform: The transform that made it, or would have; it is inverted here.
            out: As for `to_tensor`. Without, a batch of one gives ``[h, w, c]``.
            stream: As for `to_tensor`.

        Raises:
            InputError: The tensor, or ``out``, does not fit; says expected and got. Nothing was done.
        """
        strided = _look_at(tensor, self._backend)
        if strided.spec.rank == 4 and strided.spec.shape[0] == 1 and len(getattr(out, "shape", ())) != 4:
            strided = strided.as_single()
        return self._run(strided, _take_transform(transform)._to_image_operator(strided.spec), out, stream)

    def close(self) -> None:
        """Wait for its work and give everything back; Tensors it made stay. Twice is harmless."""
        with self._lock:
            self._is_closed = True
            self._unclosed.detach()
            for key in list(self._recorded):
                self._forget(key)

    def __enter__(self) -> ImageConverter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, strided: StridedImage, op: Operator, out: object, given_stream: object) -> Tensor:
        self._backend.check_process()
        (spec,) = op.infer(strided.spec)
        _check_out(out, spec)
        is_far = out is not None and not isinstance(out, Tensor) and is_on_host(out)
        with self._lock:
            if self._is_closed:
                raise ClosedError("The ImageConverter is closed.")
            caller = None if given_stream is None else CallerStream.of(self._backend, given_stream)
            target = _open_target(self._backend, spec, None if is_far else out, _OUT)
            replay = self._record(strided, op, target)
            self._submit(replay, strided.source, target, caller)
        if is_far:
            _fill_host(out, target)
        return target

    def _record(self, strided: StridedImage, op: Operator, target: Tensor) -> Replay:
        """Return the recording for such arrays, made anew unless it is a recent one."""
        key = (op, strided.spec, strided.taken, strided.strides, strided.start)
        found = self._recorded.pop(key, None)
        if found is None:
            self._make_room()
            worker = Worker(make_step(_draw(strided, op, target.spec)), backend=self._backend, frames=1)
            try:
                replay = worker.record({_IN: strided.taken})
            except BaseException:
                worker.close()
                raise
            replay._bind_by_element()
            found = (worker, replay, target.spec)
        self._recorded[key] = found
        return found[1]

    def _make_room(self) -> None:
        """Evict the least recently used recordings, but for those in flight, which would have to be waited for."""
        done = [key for key, (_, replay, _) in self._recorded.items() if replay.is_done()]
        for key in done[: max(0, len(self._recorded) - MAX_RECORDED + 1)]:
            self._forget(key)

    def _forget(self, key: object) -> None:
        worker, replay, _ = self._recorded.pop(key)
        replay.close()
        worker.close()

    def _submit(self, replay: Replay, source: Any, target: Tensor, caller: CallerStream | None) -> None:
        """Submit the conversion behind all pending writers and readers of the target; a failure leaves it as it was."""
        content, backend = target._content, self._backend
        with content.lease.lock:
            readers = content.lease.readers
            readers.add(content.fence)
            write = readers.announce_write()
            for reader in readers.list_unissued(write):
                content.lease.note_sync(content.name, "written before its readers were submitted to their streams")
                _wait_issued(reader)
            with content.lease.transfers.lock:
                stream = content.lease.transfers.open()
                readers.hold_back(stream, write)
                if caller is not None:
                    caller.order_before(stream)
                try:
                    replay.submit({_IN: source}, outputs={_OUT: _show_bytes(target)}, stream=stream)
                finally:
                    replay._let_go()
                event = backend.device.create_event()
                stream.record(event)
                content.stream = stream
            written = Fence.of(event)
            readers.add(written)
            content.fence, content.request = written, None
        backend.deferred_free.hold(event, content.region.memory)
        if caller is not None:
            caller.order_after(event)


_shared: dict[Backend, ImageConverter] = {}
_lock = threading.Lock()


def to_tensor(
    image: object,
    transform: ImageTransform | None = None,
    out: object = None,
    *,
    stream: object = None,
    backend: BackendLike = BackendType.AUTO,
) -> Tensor:
    """Return the tensor of an image at once, by a converter that the process keeps; see `ImageConverter.to_tensor`.

    It is made on the device of ``out`` or ``image`` where one of them is a Tensor, else on ``backend``.

    Example:
        >>> gx.to_tensor(np.zeros((480, 640, 3), np.uint8)).shape
        (1, 3, 480, 640)
    """
    return _converter(out, image, backend).to_tensor(image, transform, out, stream=stream)


def to_image(
    tensor: object,
    transform: ImageTransform | None = None,
    out: object = None,
    *,
    stream: object = None,
    backend: BackendLike = BackendType.AUTO,
) -> Tensor:
    """Return the image of a tensor at once, by a converter that the process keeps; see `ImageConverter.to_image`.

    It is made on the device of ``out`` or ``tensor`` where one of them is a Tensor, else on ``backend``.

    Example:
        >>> picture = gx.to_image(gx.to_tensor(np.full((4, 4, 3), 255, np.uint8)))
        >>> picture.shape
        (4, 4, 3)
    """
    return _converter(out, tensor, backend).to_image(tensor, transform, out, stream=stream)


@dataclass(frozen=True, slots=True)
class StridedImage:
    """An array and how it lies.

    Attributes:
        spec: Spec by its owner's metadata.
        source: A Worker's input: the array, or all memory it spans.
        taken: Shape of ``source``.
        strides: The array's, in elements of ``source``; None: the two are the same.
        start: Element of ``source`` that is the array's first.
    """

    spec: TensorSpec
    source: object
    taken: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    start: int = 0

    def as_single(self) -> StridedImage:
        """Return the only one of a batch."""
        strides = dlpack.dense_strides(self.spec.shape) if self.strides is None else self.strides
        spec = self.spec.with_shape(self.spec.shape[1:])
        return StridedImage(spec, self.source, self.taken, strides[1:], self.start)


def _converter(out: object, given: object, backend: BackendLike) -> ImageConverter:
    tensor = next((item for item in (out, given) if isinstance(item, Tensor)), None)
    chosen = find_backend(backend, None)[0] if tensor is None else tensor._content.backend
    with _lock:
        if chosen not in _shared:
            _shared[chosen] = ImageConverter(chosen)
        return _shared[chosen]


def _draw(strided: StridedImage, op: Operator, made: TensorSpec) -> Graph:
    """Return the graph of an operator over an array as it lies."""
    spec = strided.spec
    source = value = Value(_IN, DeclaredSpec(spec.dtype, strided.taken))
    nodes = []
    if strided.strides is not None:
        value = Value("window", DeclaredSpec(spec.dtype, spec.shape))
        nodes.append(Node(StridedView(spec.shape, strided.strides, strided.start), (source,), (value,), "window"))
    target = Value(_OUT, DeclaredSpec(made.dtype, made.shape))
    nodes.append(Node(op, (value,), (target,), op.name))
    return Graph((source,), (target,), tuple(nodes), {}, op.name)


def _take_transform(given: object) -> ImageTransform:
    if given is None:
        return ImageTransform()
    if not isinstance(given, ImageTransform):
        raise InputError(f"transform takes an ImageTransform, got {given!r}.")
    return given


def _wait_issued(fence: Fence) -> None:
    """Wait until work is on its stream, or never will be."""
    try:
        fence.wait_issued()
    except GpuexecError:
        if not fence.is_issued():
            raise


def _check_out(out: Any, spec: TensorSpec) -> None:
    """Check that a destination, if one is given, has the dtype and shape of the result.

    Raises:
        InputError: It has others, or is read-only.
    """
    if out is None:
        return
    shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", None)
    # torch spells its dtypes torch.float32.
    fits = shape is not None and tuple(shape) == spec.shape and str(dtype).rpartition(".")[2] == spec.dtype.name
    if not fits:
        raise InputError(f"`out` is a {type(out).__name__}, {dtype} of shape {shape}; expected {spec}.")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise InputError(f"`out` is a read-only {type(out).__name__}; give memory that can be written.")


def _open_target(backend: Backend, spec: TensorSpec, out: Any, name: str) -> Tensor:
    """Return the Tensor to write: the caller's, one over the caller's memory, or a new one.

    Raises:
        InputError: It lies elsewhere, or is a Worker's.
    """
    if isinstance(out, Tensor):
        content = out._content
        content.check()
        if not content.lease.is_own or content.backend.device is not backend.device:
            raise InputError(f"`out` is {out!r}; expected a tensor of your own on {backend.device.name}.")
        return out
    with backend.transfers.lock:
        stream = backend.transfers.open()
        if out is None:
            region = Region(backend.device.allocate(max(spec.nbytes, 1)), 0, spec.nbytes)
        else:
            memory = take_memory(out, backend, stream, spec.nbytes, f"`out` ({spec})", is_host=False, alignment=1)
            region = Region(memory, 0, spec.nbytes)
        return wrap_region(backend, region, spec, name, stream)


def _show_bytes(target: Tensor) -> Tensor:
    """Return a tensor over the same bytes without waits, for a writer that waits for their users itself."""
    content = target._content
    return Tensor(replace(content, fence=Fence.of(), lease=Lease(content.backend), request=None))


def _fill_host(out: Any, made: Tensor) -> None:
    """Wait for a tensor, and copy it to memory of the caller's on the host."""
    made.readback_and_clone(out if isinstance(out, np.ndarray) else dlpack.view_host(dlpack.take(out)))


class _DenseSpan:
    """All memory between the first and the last element of an array on a device, as one dense axis."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any], stream: int | None, owner: object) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": dtype.str,
            "data": (address, True),
            "strides": None,
            "stream": stream,
            "version": 3,
        }
        if hasattr(owner, "__cuda_stream__"):
            self.__cuda_stream__ = owner.__cuda_stream__


def _look_at(item: Any, backend: Backend) -> StridedImage:
    """Return how an array lies: a Tensor, one of another package's on a device, or whatever NumPy reads.

    Raises:
        InputError: It can't be read as an array, or has strides that are no whole elements.
    """
    if isinstance(item, Tensor):
        return StridedImage(item.spec, item, item.shape)
    if is_on_host(item) or not backend.device.target.has_kernels:
        if not is_on_host(item):
            raise InputError(
                f"a {type(item).__name__} lies on a GPU, expected on the host: the work is done on the CPU."
            )
        array = _read_host(item)
        return StridedImage(TensorSpec(array.shape, array.dtype), array, array.shape)
    if hasattr(item, "__cuda_array_interface__"):
        given = item.__cuda_array_interface__
        spec = TensorSpec(tuple(given["shape"]), np.dtype(given["typestr"]))
        steps, size = given.get("strides"), spec.dtype.itemsize
        if steps is None:
            return StridedImage(spec, item, spec.shape)
        if any(step % size for step in steps):
            raise InputError(f"an image expects strides of whole elements, got {steps} bytes for {spec}.")
        strides, address, stream, owner = tuple(s // size for s in steps), given["data"][0], given.get("stream"), item
    else:
        taken = dlpack.take(item, _LEGACY_STREAM)
        spec, strides, address, stream, owner = taken.spec, taken.strides, taken.address, _LEGACY_STREAM, taken.owner
    dense = dlpack.dense_strides(spec.shape)
    if not spec.size or all(a == b for a, b, extent in zip(strides, dense, spec.shape, strict=True) if extent > 1):
        return StridedImage(spec, item, spec.shape)
    strides = tuple([stride if extent > 1 else 0 for stride, extent in zip(strides, spec.shape, strict=True)])
    reach = [(extent - 1) * stride for extent, stride in zip(spec.shape, strides, strict=True)]
    start, count = -sum(min(each, 0) for each in reach), sum(map(abs, reach)) + 1
    span = _DenseSpan(address - start * spec.dtype.itemsize, count, spec.dtype, stream, owner)
    return StridedImage(spec, span, (count,), strides, start)


def _read_host(item: Any) -> np.ndarray[Any, Any]:
    try:
        if not isinstance(item, np.ndarray) and hasattr(item, "__dlpack_device__"):
            array = dlpack.view_host(dlpack.take(item))
        else:
            array = np.asarray(item)
        # Files often hold their numbers in the other order of bytes.
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if is_host_object(dtype_row(array.dtype).numpy):
            raise InputError("it has no numbers")
    except (TypeError, ValueError, BufferError, InputError) as error:
        raise InputError(f"a {type(item).__name__} can't be read as an image: {str(error).rstrip('.')}.") from error
    return array
