"""CPUs of boards by name: published figures, for compiling where the board is not.

Sources: the boards' data sheets and Arm's technical reference manuals of the cores. A peak is the
sum over cores of clock x operations a cycle, as for the hosts of the presets of GPUs; that of
RK3399, BCM2711 and BCM2712 is measured in github.com/pigirons/cpufp. Where cores differ, code is
for the larger ones; the smaller have the same instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_edge.hardware.spec import DeviceSpec

__all__ = ["BOARDS", "Board"]

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True)
class Board:
    """CPU of a board.

    Attributes
    ----------
    name : str
        For people.
    mcpu : str
        LLVM's name of the cores that code is scheduled for.
    cores : int
        All of them, the smaller ones too.
    gflops : float
        Single-precision peak of all cores.
    bandwidth : float
        Of the memory, in 10**9 bytes per second.
    l1, l2, l3 : int
        Bytes of a core's data cache, of the second level per core (a shared one divided by the
        cores that share it) and of what all cores share beyond; 0 where there is none.
    """

    name: str
    mcpu: str
    cores: int
    gflops: float
    bandwidth: float
    l1: int
    l2: int
    l3: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """Return the LLVM target."""
        return {
            "kind": "llvm",
            "mtriple": "aarch64-linux-gnu",
            "mcpu": self.mcpu,
            "num-cores": self.cores,
        }

    def described(self, spec: DeviceSpec) -> DeviceSpec:
        """Return what LLVM's features say of the CPU, with the board's figures."""
        return replace(
            spec,
            name=self.name,
            l1_cache=self.l1,
            l2_cache=self.l2,
            l3_cache=self.l3,
            peak_gflops=self.gflops,
            bandwidth_gbs=self.bandwidth,
        )


BOARDS: dict[str, Board] = {
    # Four Cortex-A76 at 2.4 GHz and four A55 at 1.8 GHz (Rock 5, Orange Pi 5); LPDDR4X, 64 bits.
    "rk3588": Board(
        "Rockchip RK3588", "cortex-a76", 8, 211.2, 34.1, l1=64 * KIB, l2=512 * KIB, l3=3 * MIB
    ),
    # BCM2712: four Cortex-A76 at 2.4 GHz; LPDDR4X-4267, 32 bits.
    "raspberry-pi-5": Board(
        "Raspberry Pi 5", "cortex-a76", 4, 153.6, 17.1, l1=64 * KIB, l2=512 * KIB, l3=2 * MIB
    ),
    # BCM2711: four Cortex-A72 at 1.5 GHz (1.8 in later ones); 1 MiB of L2 for all; LPDDR4-3200, 32
    # bits.
    "raspberry-pi-4": Board(
        "Raspberry Pi 4", "cortex-a72", 4, 48.0, 12.8, l1=32 * KIB, l2=256 * KIB
    ),
    # BCM2837: four Cortex-A53 at 1.2 GHz; 512 KiB of L2 for all; LPDDR2-900, 32 bits.
    "raspberry-pi-3": Board(
        "Raspberry Pi 3", "cortex-a53", 4, 38.4, 3.6, l1=32 * KIB, l2=128 * KIB
    ),
    # RP3A0: the same CPU at 1.0 GHz.
    "raspberry-pi-zero-2": Board(
        "Raspberry Pi Zero 2 W", "cortex-a53", 4, 32.0, 3.6, l1=32 * KIB, l2=128 * KIB
    ),
    # The CPUs beside the GPUs of the presets jetson-orin-nano and jetson-agx-orin.
    "jetson-orin-nano-cpu": Board(
        "Jetson Orin Nano, CPU",
        "cortex-a78ae",
        6,
        144.0,
        68.0,
        l1=64 * KIB,
        l2=256 * KIB,
        l3=4 * MIB,
    ),
    "jetson-agx-orin-cpu": Board(
        "Jetson AGX Orin, CPU",
        "cortex-a78ae",
        12,
        422.4,
        204.8,
        l1=64 * KIB,
        l2=256 * KIB,
        l3=6 * MIB,
    ),
}
"""By the name to write as a target."""
