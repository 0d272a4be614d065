"""Build the board's file system: Debian for AArch64, TVM's runtime and this checkout's wheel.

    python -m tests.board.root

prints the folder. It lies below ``TVM_EDGE_BOARD`` (default: the user's cache folder), under the
digest of its recipe: another recipe, or another version that the lock has, is another folder. The
wheel is of the files of this checkout, and is put in again when one of them changed: not while
another checkout runs something there. Nothing is installed on this machine, and root is not needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from time import perf_counter

import platformdirs

CHECKOUT = Path(__file__).resolve().parents[2]
TRIPLE = "aarch64-linux-gnu"
PACKAGES = "usr/local/lib/python3.11/dist-packages"  # where Debian's Python looks for others'

_SUITE, _PYTHON = "bookworm", "311"
_LOCK = CHECKOUT / f"requirements/py{_PYTHON}.txt"
_DEBIAN = ("python3", "pocl-opencl-icd", "ocl-icd-libopencl1")
_RPC = ("cloudpickle", "psutil", "tornado")  # TVM's RPC server, which its wheel does not ask for
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_17")
# Half of it all, and a board that runs artifacts does not load it.
_COMPILER = "tvm/lib/libtvm_compiler.so"
_NEEDED = {  # a tool, and its package
    "unshare": "util-linux",
    "qemu-aarch64-static": "qemu-user-static",
    f"{TRIPLE}-g++": f"g++-{TRIPLE}",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "cmake": "cmake",
    "ninja": "ninja-build",
}

# A core of an RK3399, as Linux tells of it; the emulator would show this machine's.
_CORE = """\
processor\t: {}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd08

"""

# apt as if on the board, where nothing is installed yet.
_APT = """\
Dir "{0}";
Dir::State::status "{0}/status";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
"""
_SOURCES = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    f"http://deb.debian.org/debian {_SUITE} main\n"
)


class CannotBuild(Exception):
    """The board cannot be built on this machine; says why and what to do."""


@contextmanager
def board_root() -> Iterator[Path]:
    """Keep the board's file system, built if it is not there; other checkouts wait for the end.

    Raises
    ------
    CannotBuild
        A tool is missing or the network is.
    """
    if sys.platform != "linux":
        raise CannotBuild("the emulated board needs Linux")
    if lacking := sorted(package for tool, package in _NEEDED.items() if not shutil.which(tool)):
        raise CannotBuild(f"not installed; run: sudo apt-get install {' '.join(lacking)}")
    base = Path(os.environ.get("TVM_EDGE_BOARD") or platformdirs.user_cache_path("tvm-edge-board"))
    base.mkdir(parents=True, exist_ok=True)
    recipe = Path(__file__).read_bytes(), _LOCK.read_bytes(), *map(str.encode, _requirements())
    root = base / _digest(*recipe)
    with (base / "lock").open("w") as lock:
        while True:
            # Tests of this checkout may run side by side. Between the two kinds of lock another
            # checkout may come first.
            fcntl.flock(lock, fcntl.LOCK_SH)
            if _has_checkout(root / PACKAGES):
                break
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not root.exists():
                _build(root)
            _install_checkout(root / PACKAGES, base / "wheel", CHECKOUT / "build/board" / root.name)
        yield root


def _build(root: Path) -> None:
    """Debian and the wheels, but not this checkout's, in place of those of earlier recipes."""
    base = root.parent
    for old in base.glob("[0-9a-f]*"):
        shutil.rmtree(old)
    unfinished = base / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    _unpack_debian(unfinished, base / "apt")
    _install_wheels(unfinished / PACKAGES)
    unfinished.rename(root)


def _unpack_debian(root: Path, apt: Path) -> None:
    """The packages, not configured: nothing of the board runs while it is built."""
    for folder in ("bin", "lib", "sbin"):
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for folder in ("dev", "etc", "proc", "sys", "tmp", "root"):
        (root / folder).mkdir()
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/cpuinfo").write_text("".join(_CORE.format(number) for number in range(2)))
    # The PATH of what runs there: no compiler. pocl links kernels.
    (root / "opt/bin").mkdir(parents=True)
    for program in ("python3", "ld"):
        (root / "opt/bin" / program).symlink_to(f"/usr/bin/{program}")
    shutil.rmtree(apt, ignore_errors=True)
    for folder in ("etc/apt", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(_APT.format(apt))
    (apt / "etc/apt/sources.list").write_text(_SOURCES)
    ours = {"APT_CONFIG": str(apt / "apt.conf")}
    _run("apt-get", "update", "-qq", changes=ours)
    _run("apt-get", "install", "-qq", "-y", "--download-only", *_DEBIAN, changes=ours)
    packages = sorted((apt / "var/cache/apt/archives").glob("*.deb"))
    size = sum(package.stat().st_size for package in packages)
    print(f"{len(packages)} Debian packages, {size / 1e6:.0f} MB", file=sys.stderr)
    for package in packages:
        _run("dpkg-deb", "-x", package, root)
    shutil.rmtree(apt)


def _install_wheels(folder: Path) -> None:
    """Install the wheels that running models and serving TVM's RPC need."""
    folder.mkdir(parents=True)
    platforms = [f"--platform={name}_aarch64" for name in _PLATFORMS]
    where = ["--target", folder, f"--python-version={_PYTHON}", "--only-binary=:all:"]
    where += ["--constraint", _LOCK]
    what = [*_requirements(), *_RPC]
    _run(sys.executable, "-m", "pip", "install", "-q", *platforms, *where, *what)
    (folder / _COMPILER).unlink()


def _requirements() -> list[str]:
    """Return the package's requirements, extras left out."""
    every = metadata.requires("tvm-edge") or []
    return [requirement for requirement in every if "extra ==" not in requirement]


def _has_checkout(folder: Path) -> bool:
    marker = _marker(folder)
    return marker.exists() and marker.read_text() == _checkout_digest()


def _marker(folder: Path) -> Path:
    return folder.parent / "tvm-edge.digest"


def _checkout_digest() -> str:
    """Return the digest of all that the wheel is built of."""
    files = [CHECKOUT / name for name in ("pyproject.toml", "CMakeLists.txt", "README.md")]
    for top in ("tvm_edge", "schedules", "relay_passes", "tuning_logs"):
        files += sorted(p for p in (CHECKOUT / top).rglob("*") if p.is_file())
    files = [p for p in files if "__pycache__" not in p.parts]
    return _digest(*(str(p.relative_to(CHECKOUT)).encode() + p.read_bytes() for p in files))


def _install_checkout(folder: Path, work: Path, objects: Path) -> None:
    """The wheel of this checkout, its shared library compiled by the cross compiler.

    `objects` keeps what was compiled: another Python file does not compile C++ again.
    """
    digest, marker = _checkout_digest(), _marker(folder)
    marker.unlink(missing_ok=True)
    for old in folder.glob("tvm_edge*"):
        shutil.rmtree(old)
    shutil.rmtree(work, ignore_errors=True)
    cross = {
        "CMAKE_ARGS": "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 "
        f"-DCMAKE_CXX_COMPILER={TRIPLE}-g++",
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",  # the wheel's name
        # CMakeLists.txt asks Python where TVM is: there.
        "PYTHONPATH": str(folder),
    }
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check"]
    build += ["--config-setting", f"build-dir={objects}"]
    _run(*build, "-o", work, CHECKOUT, changes=cross)
    (wheel,) = work.glob("*.whl")
    _run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"),
        *("--platform=linux_aarch64", "--only-binary=:all:", "--target", folder, wheel),
    )
    marker.write_text(digest)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _run(*command: object, changes: Mapping[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        env={**os.environ, **(changes or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode != 0:
        told = re.sub(r"\s+", " ", done.stdout)[-600:]
        raise CannotBuild(f"{' '.join(words[:4])} … ended with {done.returncode}: {told}")


if __name__ == "__main__":
    started = perf_counter()
    with board_root() as found:
        print(found)
    print(f"{perf_counter() - started:.1f} s", file=sys.stderr)
