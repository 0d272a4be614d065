"""Weights that are read part by part while a model runs, and are never in memory as a whole.

Rallapalli et al., "Are Very Deep Neural Networks Feasible on Mobile Devices?", section 3: a fully
connected layer whose weights do not fit the device is computed in parts, each with what is read of
the weights for it. The compiler cuts such layers (:mod:`tvm_edge.relay_passes.memory.split_fc`),
and ``main`` asks here for each part before the kernel that reads it. The weights of a whole layer
are a part as well (:mod:`tvm_edge.relay_passes.memory.stream_layers`).

On a CPU a kernel reads a part where it is mapped from the artifact. While it does, the next part is
read from disk, if it is not in the system's cache of the file. Nothing is copied. As long as the
system keeps all of the file, its pages stay mapped: to map them again would be slower than to
compute with them, and the system takes them back when it wants. When it does, what was used is
unmapped at once, and the system finds pages to drop that are not wanted next.

A device that reads host memory, as an OpenCL device that is the CPU, is lent each part where it is
mapped, and all of that holds for it.

To another device a part is copied. Where the host may write the device's memory at any time there
are two windows: the next part is read into one, by another thread, while a kernel reads the other.
Elsewhere there is one, and the copy waits for the kernel. It goes through pinned memory where the
driver has any (:mod:`tvm_edge.runtime.pinned_copies`).

The weights of a model that runs in the process that compiled it are in memory: parts come from
there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tvm_edge.errors import ArtifactError
from tvm_edge.runtime.devices import RuntimeDevice
from tvm_edge.runtime.dlpack import host_array, numpy_dtype
from tvm_edge.runtime.mapped_file import MappedFile, mapped_file
from tvm_edge.runtime.pinned_copies import PinnedCopies

__all__ = ["NEXT_PART", "UPLOAD_PART", "WeightStream"]

# Names whose calls TVM's pass for CUDA graphs does not record: vm.builtin's.
NEXT_PART = "vm.builtin.tvm_edge.next_part"
"""``(part, following, before, after) -> part``: a CPU kernel is about to read `part`.

`following` is the part that is wanted next, `before` the one that is not any more; `after`, if it
is given, is a result of the kernel that read that one.
"""

UPLOAD_PART = "vm.builtin.tvm_edge.upload_part"
""":data:`NEXT_PART` for a kernel of another device, which the result is on."""

_START_WRITE = "vm.builtin.tvm_edge.start_write"
_FINISH_WRITE = "vm.builtin.tvm_edge.finish_write"

_thread = threading.local()


class _Window:
    """Buffer for a part on a device."""

    def __init__(self, nbytes: int, device: tvm.runtime.Device) -> None:
        self.nbytes = nbytes
        self.buffer = tvm.runtime.empty((nbytes,), "uint8", device)
        self._part = 0  # by its address in host memory
        self._filled: Future[None] | None = None  # by another thread

    def fill(self, part: tvm.runtime.Tensor, fill: Callable[[], Future[None]]) -> None:
        """Begin to fill the window."""
        self.settle()
        self._part = part.data_ptr()
        self._filled = fill()

    def settle(self) -> None:
        """Wait until nobody writes there any more."""
        if self._filled is not None and not self._filled.cancel():
            self._filled.exception()

    def has(self, part: tvm.runtime.Tensor) -> bool:
        """Return whether it holds a part, once it is read; a part that failed is not there."""
        if self._filled is None or self._part != part.data_ptr():
            return False
        return self._filled.exception() is None

    def wait(self) -> None:
        """Wait until it is filled; raise what went wrong."""
        if self._filled is not None:
            self._filled.result()

    def as_part(self, part: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        return self.buffer._create_view(part.shape, str(part.dtype))


class _Whole:
    """Context that checks, before a run and after it, that files are what they were."""

    def __init__(self, files: Sequence[MappedFile]) -> None:
        self._files = files

    def check(self) -> None:
        for file in self._files:
            file.check()

    def __enter__(self) -> None:
        self.check()

    def __exit__(self, *_error: object) -> None:
        self.check()  # whatever else went wrong may have come of zeros


class WeightStream:
    """Parts of the weights that one session has in memory.

    Parameters
    ----------
    weights : sequence of tvm.runtime.Tensor
        Of a model, in host memory; some may be mapped.
    parts : int
        How many of them are streamed.
    device : RuntimeDevice, optional
        The one beside the CPU that reads parts.
    largest : int
        Bytes of the largest part that is copied, 0 if nobody knows: windows that grow with the
        parts would be there beside smaller ones, which the run still has.
    """

    def __init__(
        self,
        weights: Sequence[tvm.runtime.Tensor],
        parts: int,
        device: RuntimeDevice | None = None,
        largest: int = 0,
    ) -> None:
        found = {weight.data_ptr(): mapped_file(weight.data_ptr()) for weight in weights}
        self._file_of = {address: file for address, file in found.items() if file is not None}
        files = list({id(file): file for file in self._file_of.values()}.values())
        self._whole = _Whole(files)
        # Its thread starts with the first part, and ends with the session.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tvm-edge-weights")
        self._parts = parts
        self._scarce = 0  # parts to come that are dropped after their kernels
        self._device = device
        self._largest = largest
        self._windows: list[_Window] = []
        self._current = 0
        self._lent: dict[int, tvm.runtime.Tensor | None] = {}  # by address; None: only copied
        self._ahead: Future[bool] | None = None  # for the one window there is
        self._pinned: PinnedCopies | None = None
        self._uploading = threading.Lock()
        # Kernels that the device has not come to yet may read mapped pages when a run returns.
        self._reads_late = bool(files) and device is not None and device.reads_host_memory

    @property
    def whole(self) -> AbstractContextManager[Any]:
        """Context for kernels of the CPU on weights of which none is streamed.

        :meth:`running` in short.
        """
        return self._whole

    @contextmanager
    def running(self, *, on_gpu: bool) -> Iterator[None]:
        """Context in which ``main`` or a stage of it runs on this thread and takes its parts.

        A run, or the stage of a stream, with kernels of a GPU has the windows for itself meanwhile.

        Parameters
        ----------
        on_gpu : bool
            Whether kernels of the GPU may be among what runs.

        Raises
        ------
        ArtifactError
            A file that weights are mapped from has become shorter, before or meanwhile.
        """
        shares = self._parts and on_gpu and self._device is not None
        with self._whole, self._uploading if shares else nullcontext():
            outside = getattr(_thread, "stream", None)
            _thread.stream = self
            try:
                yield
                if self._reads_late and on_gpu and self._device is not None:
                    self._device.sync()
            finally:
                _thread.stream = outside

    def next_part(
        self,
        part: tvm.runtime.Tensor,
        following: tvm.runtime.Tensor,
        before: tvm.runtime.Tensor,
    ) -> tvm.runtime.Tensor:
        """Return `part` itself; what follows is read meanwhile."""
        file = self._file_of.get(part.data_ptr())
        if file is not None:
            file.check()
            # A thread that wakes up takes a core from the kernels for a while.
            wanted = following.data_ptr(), _nbytes(following)
            if self._scarce or not file.is_in_memory(*wanted):
                self._reader.submit(self._advance, file, following, before)
        return part

    def _advance(
        self, file: MappedFile, following: tvm.runtime.Tensor, before: tvm.runtime.Tensor
    ) -> None:
        if file.read_ahead(following.data_ptr(), _nbytes(following)):
            # The system's own reading ahead may be before ours for some parts.
            self._scarce = self._parts
        if self._scarce:
            self._scarce -= 1
            file.drop(before.data_ptr(), _nbytes(before))

    def upload_part(
        self,
        part: tvm.runtime.Tensor,
        following: tvm.runtime.Tensor,
        before: tvm.runtime.Tensor,
    ) -> tvm.runtime.Tensor:
        """Return `part` on the device; a second window is filled with `following` meanwhile."""
        device = self._device
        assert device is not None, "UPLOAD_PART is in the code of a GPU"
        address = part.data_ptr()
        if address not in self._lent:
            self._lent[address] = device.share(part)
        lent = self._lent[address]
        if lent is not None:
            # As of a kernel of the CPU: the one that read `before` is done.
            device.sync()
            self.next_part(part, following, before)
            return lent
        self._make_windows(device, max(_nbytes(part), _nbytes(following)))
        if len(self._windows) == 1:
            return self._copy(device, part, following)
        window = self._windows[1 - self._current]
        if not window.has(part):  # the first run, or one after a run that failed
            self._begin(window, part)
            window.wait()
        self._current = 1 - self._current
        # After the kernel that read the other window, and before the one that reads this.
        self._begin(self._windows[1 - self._current], following)
        return window.as_part(part)

    def _make_windows(self, device: RuntimeDevice, nbytes: int) -> None:
        """Have windows that hold so much."""
        nbytes = max(nbytes, self._largest)
        if self._windows and self._windows[0].nbytes >= nbytes:
            return
        count = 2 if device.host_writes_at_any_time else 1
        for window in self._windows:
            window.settle()
        if self._windows:  # before there are others; the runtime keeps what is freed
            self._windows.clear()
            device.release_memory()
        self._windows = [_Window(nbytes, device.handle) for _ in range(count)]

    def _copy(
        self, device: RuntimeDevice, part: tvm.runtime.Tensor, following: tvm.runtime.Tensor
    ) -> tvm.runtime.Tensor:
        (window,) = self._windows
        file = self._file_of.get(part.data_ptr())
        if file is not None:
            file.check()
            # Pages that arrive after they were dropped would stay.
            if self._ahead is not None and not self._ahead.cancel():
                self._ahead.exception()
            wanted = following.data_ptr(), _nbytes(following)
            self._ahead = self._reader.submit(file.read_ahead, *wanted)
        copy = window.as_part(part)
        pinned = device.pinned_memory
        if pinned is None:
            part.copyto(copy)
            if file is not None:
                device.sync()  # the copy may still be reading
        else:
            if self._pinned is None:
                self._pinned = PinnedCopies(device.handle, pinned)
            self._pinned.copy(_bytes(part), file, window.buffer)
        if file is not None:
            file.drop(part.data_ptr(), _nbytes(part))  # what was read ahead is mapped
        return copy

    def _begin(self, window: _Window, part: tvm.runtime.Tensor) -> None:
        """Have a window filled as soon as the device is done with what was enqueued up to now."""
        started = tvm_ffi.get_global_func(_START_WRITE)(window.buffer)
        window.fill(part, lambda: self._reader.submit(self._fill, started, part))

    def _fill(self, started: Any, part: tvm.runtime.Tensor) -> None:
        shared = tvm_ffi.get_global_func(_FINISH_WRITE)(started)
        target = host_array(shared)[: _nbytes(part)]
        file = self._file_of.get(part.data_ptr())
        if file is None:
            np.copyto(target, _bytes(part))
        else:
            file.read_into(target, part.data_ptr())


def _nbytes(tensor: tvm.runtime.Tensor) -> int:
    return math.prod(tensor.shape) * numpy_dtype(str(tensor.dtype)).itemsize


def _bytes(tensor: tvm.runtime.Tensor) -> np.ndarray:
    return host_array(tensor).reshape(-1).view(np.uint8)


def _stream() -> WeightStream:
    stream: WeightStream = _thread.stream  # a session runs whatever calls this
    return stream


@tvm_ffi.register_global_func(NEXT_PART)
def _next_part(part: Any, following: Any, before: Any, _after: Any = None) -> Any:
    return _stream().next_part(part, following, before)


@tvm_ffi.register_global_func(UPLOAD_PART)
def _upload_part(part: Any, following: Any, before: Any, _after: Any = None) -> Any:
    return _stream().upload_part(part, following, before)


# What is raised in a function that the virtual machine calls is raised again outside of it; of
# types that nobody registered as RuntimeError.
tvm_ffi.register_error("tvm_edge.ArtifactError", ArtifactError)
