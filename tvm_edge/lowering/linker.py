"""The program that makes a shared library of object files, for this machine or another."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tvm.support import cc

from tvm_edge.errors import ArtifactError, MissingDependencyError
from tvm_edge.host import machine

__all__ = ["Linker", "find_linker"]

# Kernels need no start-up code and only these libraries, by the names that every system has: a
# machine with gcc but without libc6-dev can link. libgcc has float16 conversions.
_LIBRARIES = ("-nostdlib", "-lgcc", "-l:libm.so.6", "-l:libc.so.6")

# Zig makes stubs of the C library, of the version in the triple: the one TVM's wheels ask for.
_ZIG_GLIBC = "2.28"
_ZIG_LIBRARIES = ("-lm", "-lc")


@dataclass(frozen=True)
class Linker:
    """A compiler driver that links; ``fcompile`` of TVM's ``export_library``.

    Attributes
    ----------
    command : tuple[str, ...]
        The program and its first arguments.
    libraries : tuple[str, ...]
        Arguments after the object files.
    setting : str
        The environment variable that names the program, or that could.
    """

    command: tuple[str, ...]
    libraries: tuple[str, ...]
    setting: str

    def __call__(self, output: str, objects: Sequence[str]) -> None:
        """Link `objects` into the shared library `output`.

        Raises
        ------
        ArtifactError
            The program cannot be started, or fails.
        """
        command = [*self.command, "-shared", "-fPIC", "-o", output, *objects, *self.libraries]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as err:
            raise ArtifactError(
                f"the linker cannot be started: {err}; check the compiler "
                f"(the environment variable {self.setting})"
            ) from err
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            reason = lines[0] if lines else f"it ended with {done.returncode}"
            raise ArtifactError(
                f"linking the library with {shlex.join(self.command)} failed: {reason[:300]}; "
                f"check the compiler (the environment variable {self.setting}) "
                "and the space in the temporary folder (TMPDIR)"
            )


def find_linker(architecture: str) -> Linker:
    """The linker for code of an architecture.

    The first that there is of: the one that the environment names, a compiler of this machine or
    Debian's cross compiler, Zig. The environment names one in ``CXX_<triple>``, as in
    ``CXX_aarch64_linux_gnu``, and in ``CXX`` (or ``CC``): for this machine's code whatever it is,
    for another's if it is called so, as in ``aarch64-poky-linux-g++ --sysroot=…`` of an SDK.

    Parameters
    ----------
    architecture : str
        As LLVM triples have it, ``aarch64``.

    Raises
    ------
    MissingDependencyError
        There is none; the message names the packages that have one.
    """
    triple = f"{architecture}-linux-gnu"
    own = f"CXX_{triple.replace('-', '_')}"
    if os.environ.get(own):
        return Linker(_words(own), _LIBRARIES, own)
    if architecture == machine():
        compiler = cc.get_cc()  # knows CXX and CC
        if compiler:
            return Linker(tuple(shlex.split(compiler)), _LIBRARIES, "CXX")
    else:
        for variable in ("CXX", "CC"):
            words = _words(variable)
            if words and os.path.basename(words[0]).startswith(f"{architecture}-"):
                return Linker(words, _LIBRARIES, variable)
        for name in (f"{triple}-g++", f"{triple}-gcc"):
            if found := shutil.which(name):
                return Linker((found,), _LIBRARIES, own)
    if importlib.util.find_spec("ziglang"):
        target = f"{triple}.{_ZIG_GLIBC}"
        zig = (sys.executable, "-m", "ziglang", "c++", "-target", target)
        return Linker(zig, _ZIG_LIBRARIES, own)
    package = "g++" if architecture == machine() else f"g++-{triple.replace('_', '-')}"
    raise MissingDependencyError(
        f"exporting a library for {architecture} needs a compiler to link with; "
        f"run: apt-get install {package}, or: pip install 'tvm-edge[cross]'"
    )


def _words(variable: str) -> tuple[str, ...]:
    return tuple(shlex.split(os.environ.get(variable, "")))
