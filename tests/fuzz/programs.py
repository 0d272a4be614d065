"""Damaged packs of built OpenCL kernels: what an artifact's ``programs.bin`` holds.

A pack is entries one after another (``tvm_edge/opencl/csrc/program_store.cc``). Checksums are
repaired, so that damage reaches what is behind them. The binaries inside are code that a driver
executes, and as trusted as ``library.so``.
"""

from __future__ import annotations

import random
import struct

from tests.fuzz.mutations import mutate_bytes

__all__ = ["entry", "random_pack"]

_MARK = b"TEOCL001"
_LENGTHS = (0, 1, 31, 32, 33, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, 2**64 - 32, 2**64 - 33)


def _hash(data: bytes) -> int:
    """FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def entry(key: bytes, binary: bytes, lengths: tuple[int, int] | None = None) -> bytes:
    """An entry with a sound checksum, and with any lengths in its header."""
    body = struct.pack("<QQ", *(lengths or (len(key), len(binary)))) + key + binary
    return _MARK + struct.pack("<Q", _hash(body)) + body


def random_pack(seed: int) -> bytes:
    """One to four entries, some with lengths that lie."""
    rng = random.Random(seed)
    pack = b""
    for _ in range(rng.randint(0, 4)):
        key = rng.choice((b"", b"key", b"\xff\0" * 20, rng.randbytes(rng.randrange(300))))
        binary = rng.randbytes(rng.choice((0, 1, 30, 500)))
        lengths = None
        if rng.random() < 0.4:
            lengths = (
                rng.choice((len(key), *_LENGTHS)) % 2**64,
                rng.choice((len(binary), len(binary) + 1, *_LENGTHS)),
            )
        pack += entry(key, binary, lengths)
    if rng.random() < 0.4:
        pack = mutate_bytes(pack, rng.getrandbits(32))
    return pack + rng.randbytes(rng.choice((0, 0, 0, 1, 31, 40)))
