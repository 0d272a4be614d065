"""OpenCL for the stock TVM wheel: ``tvm.opencl()`` devices, ``target="opencl"`` modules, RPC.

Installing tvm-edge is enough: TVM loads the runtime whenever it is imported. The functions here
ask the runtime what it knows beyond TVM's own interface.

Environment
-----------
``TVM_EDGE_OPENCL=platform:device``
    Which devices to use; each part an index or a piece of the name, either may be left out.
``TVM_EDGE_OPENCL_LIBRARY=path``
    The OpenCL library to open instead of looking for one.
``TVM_EDGE_OPENCL_MEMORY=buffer|svm``
    How to allocate; by default shared virtual memory where the device shares memory with the host.
``TVM_EDGE_OPENCL_CACHE=folder``, ``TVM_EDGE_OPENCL_CACHE_SIZE=MiB``
    Where built programs are kept (0: nowhere), and how much of them (256).
``TVM_EDGE_OPENCL_IN_FLIGHT=launches``
    How many kernels may wait in a queue (1024); some drivers fail when it is too many.
``TVM_EDGE_OPENCL_COMMAND_BUFFER=0|1``
    Whether kernels of a model are recorded and enqueued as one command (:func:`command_buffers`).
    By default they are where the driver has ``cl_khr_command_buffer``, since that does not lose on
    pocl, the driver it was measured on. pocl enqueues what was recorded kernel by kernel: a run
    has 0.95 to 1.02 of the latency, and its launches 0.64 to 1.08.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm_edge.opencl._autoload import autoload, library_path

if TYPE_CHECKING:
    import tvm

__all__ = [
    "autoload",
    "borrow",
    "build",
    "command_buffers",
    "copied",
    "device_info",
    "host_view",
    "kernel_info",
    "library_path",
    "load_programs",
    "memory",
    "profile_start",
    "profile_stop",
    "program_stats",
    "recording_failure",
    "release_memory",
    "reset_peak",
    "save_programs",
    "status",
    "too_large_kernels",
]


def _call(name: str, *args: Any) -> Any:
    import tvm_ffi

    function = tvm_ffi.get_global_func(f"tvm_edge.opencl.{name}", allow_missing=True)
    if function is None:
        import tvm  # noqa: F401  its import loads the runtime

        function = tvm_ffi.get_global_func(f"tvm_edge.opencl.{name}")
    return _python(function(*args))


def _python(value: Any) -> Any:
    """TVM's maps and arrays as dictionaries and lists."""
    if hasattr(value, "items"):
        return {str(key): _python(item) for key, item in value.items()}
    if type(value).__name__ == "Array":
        return [_python(item) for item in value]
    return str(value) if isinstance(value, str) else value


def status() -> dict[str, Any]:
    """Return what was looked for and found, without opening a device.

    Returns
    -------
    dict
        ``library`` (path), ``error`` (why nothing is usable, empty if something is),
        ``selection`` (``TVM_EDGE_OPENCL``), ``devices`` (a list: ``platform``,
        ``platform_index``, ``device_index``, ``name``, ``type``, ``version``, ``used``).
    """
    return _call("status")


def device_info(device_id: int = 0) -> dict[str, Any]:
    """Return a device's description by its driver; sizes in bytes, clock in MHz.

    Raises
    ------
    RuntimeError
        There is no such device.
    """
    return _call("device_info", device_id)


def kernel_info(module: tvm.runtime.Module, name: str, device_id: int = 0) -> dict[str, Any]:
    """Limits and sizes of one kernel as built for a device.

    Returns
    -------
    dict
        ``max_work_group_size``, ``preferred_multiple`` (work-items), ``local_memory``,
        ``private_memory`` (bytes), ``required_work_group_size`` (three work-items, 0: any).
    """
    return _call("kernel_info", module, name, device_id)


def borrow(tensor: tvm.runtime.Tensor, device_id: int = 0) -> tvm.runtime.Tensor | None:
    """A tensor for kernels of a device to read, over the memory of one in host memory.

    It keeps the other alive, which nobody may write meanwhile.

    Parameters
    ----------
    tensor : tvm.runtime.Tensor
        Contiguous, in host memory.

    Returns
    -------
    tvm.runtime.Tensor or None
        None where only a copy will do: the device is not the CPU (drivers of GPUs copy such memory,
        or take whole pages of it alone), or the tensor does not begin on 64 bytes.
    """
    return _call("borrow", tensor, device_id)


def memory(device_id: int = 0) -> dict[str, int]:
    """Bytes that this process uses on a device.

    Returns
    -------
    dict
        ``in_use``, ``peak`` (largest ``in_use`` since :func:`reset_peak`), ``pooled`` (freed, kept
        for the next tensor), and ``live``, the number of allocations in use.
    """
    return _call("memory", device_id)


def reset_peak(device_id: int = 0) -> None:
    """Let ``memory()["peak"]`` begin at what is in use now."""
    _call("reset_peak", device_id)


def release_memory(device_id: int = 0) -> int:
    """Give freed memory that is kept for later tensors back to the driver; how many bytes."""
    return _call("release_memory", device_id)


def copied(device_id: int = 0) -> dict[str, int]:
    """Bytes that were copied between the host and a device since the process began.

    Returns
    -------
    dict
        ``in`` (to the device), ``out`` (to the host). What both use in shared memory is not copied.
    """
    return _call("copied", device_id)


def host_view(tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """A CPU tensor over the memory of an OpenCL tensor, without a copy.

    The view keeps the tensor alive. While it lives, launching a kernel on the tensor raises
    ``RuntimeError``: drop the view first.

    Raises
    ------
    ValueError
        The device does not share its memory with the host.
    """
    return _call("host_view", tensor)


def profile_start(device_id: int = 0) -> None:
    """Record every command on a device, timed by the device's clock, until :func:`profile_stop`."""
    _call("profile_start", device_id)


def profile_stop(device_id: int = 0) -> list[dict[str, Any]]:
    """Stop recording.

    Returns
    -------
    list of dict
        In order of start: ``name``, ``kind`` ("kernel" or "copy"), ``queued``, ``submitted``,
        ``start``, ``end`` (nanoseconds).
    """
    return _call("profile_stop", device_id)


def build(module: tvm.runtime.Module, device_id: int = 0) -> None:
    """Build all kernels of a module and its imports now, instead of each at its first launch.

    Raises
    ------
    RuntimeError
        A kernel does not build; with its name and the driver's log.
    """
    _call("build", module, device_id)


def too_large_kernels(module: tvm.runtime.Module, device_id: int = 0) -> list[str]:
    """Kernels that are launched in groups of more work-items than the driver can run them in.

    The limit depends on the registers that a kernel needs, and so on the driver's compiler: all
    kernels are built.
    """
    return [str(name) for name in _call("too_large_kernels", module, device_id)]


def save_programs(module: tvm.runtime.Module, device_id: int = 0) -> bytes:
    """The driver's binaries of all kernels of a module, for :func:`load_programs`."""
    return bytes(_call("save_programs", module, device_id))


def load_programs(data: bytes) -> None:
    """Use saved binaries for the kernels, devices and drivers they were made for.

    Raises
    ------
    ValueError
        The bytes are damaged.
    """
    _call("load_programs", data)


def program_stats() -> dict[str, int]:
    """Count the sources of this process's programs.

    Returns
    -------
    dict
        Counts: ``built`` (from source), ``from_disk``, ``from_artifact``, ``stored`` (written to
        the disk), ``damaged`` (entries on disk that were no use), ``waiting`` (of artifacts, in
        memory until they are used).
    """
    return _call("program_stats")


def command_buffers(device_id: int = 0) -> dict[str, Any]:
    """Return the state of recorded launches on a device.

    Runs of kernels over memory that stays where it is are recorded when a model first makes them,
    and enqueued as one command afterwards (``cl_khr_command_buffer``). Kernels are launched one by
    one where the driver lacks the extension, where recording fails, and while commands are timed.

    Returns
    -------
    dict
        ``missing`` (why nothing is recorded; empty if something is), ``simultaneous`` (whether a
        recording may be enqueued again before it has run), and counts: ``recorded`` (recordings
        made) and ``launches`` in them, ``replayed`` (recordings enqueued), ``plain`` (runs of the
        same kernels one by one), ``failed`` (what the driver would not record or replay).
    """
    return _call("command_buffers", device_id)


def recording_failure(device_id: int = 0) -> str:
    """Say why the driver did not record something that it should; once, then empty."""
    return _call("recording_failure", device_id)
