"""Description of a board: versions, CPU, and the devices that models can run on.

``python -m tvm_edge.rpc.board_info`` prints it as JSON. The server asks in this way, because a
driver may crash whoever asks it, and does not survive the fork that makes a session.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvm_edge import opencl
from tvm_edge.host import host_features, machine, physical_cores
from tvm_edge.runtime.info import versions
from tvm_edge.schema import check_types

__all__ = ["BoardDevice", "BoardInfo", "describe", "hello"]

_MOST_DEVICES = 16


@dataclass(frozen=True)
class BoardDevice:
    """Device of a board.

    Attributes
    ----------
    target : str
        ``llvm``, ``opencl`` or ``cuda``.
    index : int
        Counts the devices of one kind; ``load(path, device="opencl:1", remote=…)``.
    name : str
    cores : int
        Physical cores or compute units.
    driver : str
        With its version; empty for a CPU.
    details : dict
        Facts that the driver tells of it, sizes in bytes.
    """

    target: str
    index: int
    name: str
    cores: int
    driver: str
    details: dict[str, Any]


@dataclass(frozen=True)
class BoardInfo:
    """Board as it describes itself.

    Attributes
    ----------
    host : str
        Its name in the network.
    architecture : str
        As LLVM spells it.
    features : tuple[str, ...] or None
        Instruction sets in LLVM's names, those that generated code may need; ``None`` if the
        board's system does not say.
    versions : dict
        Versions of ``tvm_edge``, ``tvm``, ``tvm_ffi``, and ``python``.
    devices : tuple[BoardDevice, ...]
        The CPU first.
    """

    host: str
    architecture: str
    features: tuple[str, ...] | None
    versions: dict[str, str]
    devices: tuple[BoardDevice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BoardInfo:
        """Read what :meth:`to_dict` returns.

        Raises
        ------
        ValueError
            What no board says.
        """
        try:
            features = fields["features"]
            info = cls(
                fields["host"],
                fields["architecture"],
                None if features is None else tuple(features),
                fields["versions"],
                tuple(BoardDevice(**device) for device in fields["devices"]),
            )
        except (KeyError, TypeError) as err:
            raise ValueError(f"{type(err).__name__}: {err}") from err
        check_types(info, cls, "the description")
        if missing := {"tvm_edge", "tvm", "python"} - set(info.versions):
            raise ValueError(f"no version of {', '.join(sorted(missing))}")
        return info

    def __str__(self) -> str:
        found = self.versions
        lines = [
            f"{self.host}: {self.architecture}, tvm-edge {found['tvm_edge']}, TVM {found['tvm']}, "
            f"Python {found['python']}"
        ]
        for d in self.devices:
            driver = f", {d.driver}" if d.driver else ""
            lines.append(f"{d.target}:{d.index}  {d.name}  ({d.cores} cores{driver})")
        return "\n".join(lines)


def hello() -> dict[str, Any]:
    """Return what a client has to know before it sends anything; asks no driver."""
    features = host_features()
    return {
        "host": platform.node(),
        "architecture": machine(),
        "features": None if features is None else sorted(features),
        "versions": {**versions(), "python": platform.python_version()},
    }


def describe() -> BoardInfo:
    """Describe this machine."""
    return BoardInfo.from_dict({**hello(), "devices": [asdict(device) for device in _devices()]})


def _devices() -> Iterator[BoardDevice]:
    yield BoardDevice("llvm", 0, _cpu_name(), physical_cores(), "", {})
    yield from _cuda_devices()
    for index, _ in enumerate(d for d in opencl.status()["devices"] if d["used"]):
        info = opencl.device_info(index)
        driver = " ".join(str(info[key]) for key in ("version", "driver") if info.get(key))
        cores = int(info.get("compute_units", 0))
        yield BoardDevice("opencl", index, str(info["name"]), cores, driver, info)


def _cuda_devices() -> Iterator[BoardDevice]:
    import tvm

    if not tvm.runtime.enabled("cuda"):
        return
    for index in range(_MOST_DEVICES):
        device = tvm.cuda(index)
        if not device.exist:
            return
        version = str(device.compute_version)
        yield BoardDevice(
            "cuda",
            index,
            str(device.device_name),
            int(device.multi_processor_count),
            f"compute capability {version}",
            {"compute_version": version},
        )


def _cpu_name() -> str:
    """Read ``/proc/cpuinfo``, or the board's device tree, where ARM's cores have no names."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Hardware", "Model"):
                return value.strip()
        return Path("/proc/device-tree/model").read_text().strip("\0 \n")
    except OSError:
        return machine()


if __name__ == "__main__":
    print(json.dumps(describe().to_dict()))
