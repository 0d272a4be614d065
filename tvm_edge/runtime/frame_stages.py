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

from tvm_edge.runtime.devices import RuntimeDevice
from tvm_edge.runtime.entry import Main, entry, stage_name

__all__ = ["Stage", "StagedFrame", "find_stages"]


@dataclass(frozen=True)
class StagedFrame:
    """State of one frame between two stages.

    Attributes
    ----------
    values : sequence
        Results of its last stage.
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
    device : RuntimeDevice
        The one that it runs on.
    lock : threading.Lock
        Of the virtual machine, which runs one function at a time; stages of one device share it.
    function : callable
        Takes the values and, last, the weights.
    """

    device: RuntimeDevice
    lock: threading.Lock
    function: Main


def find_stages(
    make_machine: Callable[[], VirtualMachine], devices: Sequence[RuntimeDevice]
) -> tuple[Stage, ...]:
    """Return the stages that a model's code has, in order; none for a model on one device.

    Parameters
    ----------
    make_machine : callable
        Makes a virtual machine for the code.
    devices : sequence of RuntimeDevice
        The model's, in the order of the code's virtual devices.
    """
    if len(devices) < 2:
        return ()
    code: Any = make_machine()
    machines: dict[int, tuple[VirtualMachine, threading.Lock]] = {}
    found: list[Stage] = []
    while True:
        names = {number: stage_name(len(found), number) for number in range(len(devices))}
        number = next((d for d, n in names.items() if code.module.implements_function(n)), None)
        if number is None:
            return tuple(found)
        if number not in machines:
            machines[number] = (code if not machines else make_machine(), threading.Lock())
        machine, lock = machines[number]
        found.append(Stage(devices[number], lock, entry(machine, names[number])))
