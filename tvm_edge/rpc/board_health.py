"""Checks of ``doctor`` on a board: drivers, and why timings vary (governors, clocks, heat)."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from tvm_edge.diagnosis import Check, Diagnosis, Status
from tvm_edge.opencl.diagnosis import diagnose
from tvm_edge.runtime.info import versions

__all__ = ["board_doctor", "clock_checks"]

_TIMINGS = "timings that repeat"
_HOT = 85.0  # °C: Jetsons and phones lower their clocks at 85 to 97
_STEADY = ("performance", "userspace")
_JETSON = Path("etc/nv_tegra_release")


def board_doctor() -> Diagnosis:
    """Check this board, on TVM's runtime tier."""
    found = versions()
    opencl = diagnose()
    status: Status = "wrong" if opencl.broken else "ok" if opencl.usable else "missing"
    return Diagnosis(
        (
            Check(
                "tvm-edge",
                "ok",
                f"{found['tvm_edge']} on Python {platform.python_version()}, {platform.node()}",
                "everything",
            ),
            Check("apache-tvm", "ok", found["tvm"], "everything"),
            Check("OpenCL", status, opencl.found, "target 'opencl'", opencl.command),
            *clock_checks(),
        )
    )


def clock_checks(root: Path = Path("/")) -> Iterator[Check]:
    """Check governors, clocks and temperature, from ``/sys``.

    Parameters
    ----------
    root : path
        In place of ``/``.
    """
    jetson = (root / _JETSON).exists()
    advice = "sudo jetson_clocks" if jetson else "sudo cpupower frequency-set -g performance"
    policies = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))
    yield _clocks(
        "CPU clocks", policies, ("scaling_governor", "scaling_cur_freq", "cpuinfo_max_freq"), advice
    )
    gpus = sorted((root / "sys/class/devfreq").glob("*"))
    advice = "sudo jetson_clocks" if jetson else "set the governor under /sys/class/devfreq"
    yield _clocks("GPU and memory clocks", gpus, ("governor", "cur_freq", "max_freq"), advice)
    yield _temperature(root)


def _clocks(name: str, folders: list[Path], files: tuple[str, str, str], advice: str) -> Check:
    governor_file, now_file, most_file = files
    found, steady = [], True
    for folder in folders:
        governor = _read(folder / governor_file)
        now, most = _number(folder / now_file), _number(folder / most_file)
        if governor is None:
            continue
        # jetson_clocks sets no governor, but leaves no range between the clocks either.
        held = _number(folder / "min_freq") if name.startswith("GPU") else None
        steady &= governor in _STEADY or (held is not None and held == most)
        clock = f" at {now / most:.0%}" if now is not None and most else ""
        found.append(f"{folder.name} {governor}{clock}")
    if not found:
        return Check(name, "missing", "unknown: not readable in /sys", _TIMINGS)
    status: Status = "ok" if steady else "wrong"
    return Check(name, status, ", ".join(found), _TIMINGS, "" if steady else advice)


def _temperature(root: Path) -> Check:
    zones = []
    for folder in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        thousandths = _number(folder / "temp")
        if thousandths is not None:
            zones.append((thousandths / 1000, _read(folder / "type") or folder.name))
    if not zones:
        return Check("temperature", "missing", "unknown: not readable in /sys", _TIMINGS)
    highest, zone = max(zones)
    hot = highest >= _HOT
    return Check(
        "temperature",
        "wrong" if hot else "ok",
        f"{highest:.0f} °C ({zone})",
        _TIMINGS,
        "let the board cool down, or give it a fan" if hot else "",
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(path: Path) -> float | None:
    text = _read(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
