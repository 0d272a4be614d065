"""Bundles: an artifact with all that runs it on a machine without Python."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tvm_edge.errors import ArtifactError, InputError
from tvm_edge.files import writing
from tvm_edge.library_path import library_path
from tvm_edge.runtime.artifact import read_artifact
from tvm_edge.runtime.devices import DEVICES
from tvm_edge.runtime.info import read_info

__all__ = ["write_bundle"]

_RUNTIME = "libtvm_edge_runtime.so.0"
_MACHINES = {62: "x86_64", 183: "aarch64"}  # of ELF's header

_PKG_CONFIG = """\
prefix=${pcfiledir}/../..
Name: tvm-edge
Description: Run compiled CNNs
Version: %s
Cflags: -I${prefix}/include
Libs: -L${prefix}/lib -l:libtvm_edge_runtime.so.0 -Wl,-rpath-link,${prefix}/lib
"""


def write_bundle(
    artifact: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    site_packages: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a folder with an artifact, the libraries that run it, headers and a program.

    Parameters
    ----------
    artifact : path
    folder : path
        Made, or empty.
    site_packages : path, optional
        Where tvm-edge and TVM are installed for the machine that the artifact is for; default
        this installation.

    Raises
    ------
    ArtifactError
        The artifact is damaged, or libraries are missing or for another architecture.
    InputError
        The folder has something in it.
    """
    from tvm_edge._version import __version__

    source, target = Path(artifact), Path(folder)
    info = read_info(read_artifact(source))
    more = [name for kind in info.devices.kinds for name in DEVICES[kind].libraries]
    libraries, package = _libraries(site_packages, more)
    _check_machines(source, str(info.target["architecture"]), libraries)
    advice = "choose a folder that is writable and has space"
    with writing(target, "the bundle", error=ArtifactError, advice=advice):
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise InputError(
                f"the folder {str(target)!r} is not empty; name another, or empty it",
                name="output",
                expected="an empty folder",
                got=str(target),
            )
        (target / "lib" / "pkgconfig").mkdir(parents=True)
        shutil.copyfile(source, target / "model.tvme")
        for library in libraries:
            shutil.copy(library, target / "lib" / library.name)
        shutil.copytree(Path(__file__).parents[1] / "native" / "include", target / "include")
        shutil.copytree(Path(__file__).parents[1] / "native" / "cmake", target / "cmake")
        shutil.copy(package / "bin" / "tvm-edge-run", target / "run")
        description = target / "lib" / "pkgconfig" / "tvm_edge.pc"
        description.write_text(_PKG_CONFIG % __version__)
    return target


def _libraries(
    site_packages: str | os.PathLike[str] | None, more: Sequence[str]
) -> tuple[list[Path], Path]:
    """Libraries of an installation, and its folder of the native runtime."""
    if site_packages is None:
        import tvm
        import tvm_ffi

        tvm_lib = Path(str(tvm.__file__)).parent / "lib"
        ffi_lib = Path(str(tvm_ffi.__file__)).parent / "lib"
        package = library_path().parents[1]
    else:
        site = Path(site_packages)
        tvm_lib, ffi_lib = site / "tvm" / "lib", site / "tvm_ffi" / "lib"
        package = site / "tvm_edge" / "native"
    names = [
        package / "lib" / _RUNTIME,
        tvm_lib / "libtvm_runtime.so",
        ffi_lib / "libtvm_ffi.so",
        *(tvm_lib / name for name in more),
    ]
    for path in (*names, package / "bin" / "tvm-edge-run"):
        if not path.is_file():
            raise ArtifactError(
                f"{str(path)!r} is not there; install tvm-edge in that folder: pip install "
                "--target FOLDER tvm-edge"
            )
    return names, package


def _check_machines(artifact: Path, architecture: str, libraries: list[Path]) -> None:
    for library in libraries:
        with library.open("rb") as file:
            header = file.read(20)
        machine = _MACHINES.get(int.from_bytes(header[18:20], "little"), "another machine")
        if machine != architecture:
            raise ArtifactError(
                f"the artifact {str(artifact)!r} is for {architecture}, and {str(library)!r} for "
                f"{machine}; pass --site-packages with a folder of the board's packages: pip "
                "install --platform manylinux_2_28_aarch64 --only-binary :all: --target FOLDER "
                "tvm-edge"
            )
