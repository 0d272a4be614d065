"""Launch functions of tests under compiled kernels: any number of pieces, in any order."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm_ffi.libinfo

__all__ = ["launched_in_pieces"]

_SYMBOL = b"__TVMBackendParallelLaunch"


class _Env(ctypes.Structure):
    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


_Piece = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Env), ctypes.c_void_p)
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, _Piece, ctypes.c_void_p, ctypes.c_int)

_kept: list[object] = []  # libraries hold addresses of these


@contextmanager
def launched_in_pieces(pieces: int, seed: int | None = 0) -> Iterator[None]:
    """Context in which libraries are loaded whose kernels run in so many pieces, one by one.

    Shuffled, or with `seed` None in order. A kernel that waits for a piece would wait for ever.
    """
    shuffled = random.Random(seed)

    def launch(piece: ctypes._FuncPointer, data: int, _wanted: int) -> int:
        env = _Env(None, pieces)
        order = list(range(pieces))
        if seed is not None:
            shuffled.shuffle(order)
        return max((abs(piece(number, env, data)) for number in order), default=0)

    function = _Launch(launch)
    _kept.append(function)
    library = ctypes.CDLL(str(Path(tvm_ffi.libinfo.find_libtvm_ffi())))
    register = library.TVMFFIEnvModRegisterContextSymbol
    register.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    before = ctypes.CDLL(_runtime()).TVMBackendParallelLaunch
    register(_SYMBOL, ctypes.cast(function, ctypes.c_void_p))
    try:
        yield
    finally:
        register(_SYMBOL, ctypes.cast(before, ctypes.c_void_p))


def _runtime() -> str:
    """TVM's runtime library, which is loaded already."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.endswith("libtvm_runtime.so"))
