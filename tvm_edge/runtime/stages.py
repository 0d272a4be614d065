"""The stages of a model on several devices: each device may work on another frame.

The code has a function for each (:mod:`tvm_edge.relay_passes.instructions.split_stages`). A stage
takes what the one before returned, as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.runtime.vm import VirtualMachine

from tvm_edge.runtime.entry import Main, entry, stage_name

__all__ = ["Stage", "StagedFrame", "find_stages"]


@dataclass(frozen=True)
class StagedFrame:
    """What one frame has come to.

    Attributes
    ----------
    values : sequence
        What its last stage returned.
    taken : sequence of int
        The addresses of the model's inputs.
    """

    values: Sequence[Any]
    taken: Sequence[int]


@dataclass(frozen=True)
class Stage:
    """A part of ``main``.

    Attributes
    ----------
    kind : str
        Of the device that it runs on.
    lock : threading.Lock
        Of the virtual machine, which runs one function at a time; stages of one device share it.
    function : callable
        Takes the values and, last, the weights.
    """

    kind: str
    lock: threading.Lock
    function: Main


def find_stages(
    make_machine: Callable[[], VirtualMachine], kinds: Sequence[str]
) -> tuple[Stage, ...]:
    """The stages that a model's code has, in order; none for a model on one device.

    Parameters
    ----------
    make_machine : callable
        Makes a virtual machine for the code.
    kinds : sequence of str
        Of the model's devices, in the order of the code's virtual devices.
    """
    if len(kinds) < 2:
        return ()
    code: Any = make_machine()
    machines: dict[int, tuple[VirtualMachine, threading.Lock]] = {}
    found: list[Stage] = []
    while True:
        names = {device: stage_name(len(found), device) for device in range(len(kinds))}
        device = next((d for d, n in names.items() if code.module.implements_function(n)), None)
        if device is None:
            return tuple(found)
        if device not in machines:
            machines[device] = (code if not machines else make_machine(), threading.Lock())
        machine, lock = machines[device]
        found.append(Stage(kinds[device], lock, entry(machine, names[device])))
