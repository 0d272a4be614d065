"""``tvm-edge devices`` and ``tvm-edge doctor``."""

from __future__ import annotations

import sys

import click

from tvm_edge.cli import common


@click.command("devices")
@common.json_option
def devices_command(as_json: bool) -> None:
    """List the devices that models can run on."""
    import tvm_edge

    found = tvm_edge.devices()
    lines = [f"{d.target}:{d.index}  {d.name}  ({d.cores} cores)" for d in found]
    common.emit(as_json, [device.to_dict() for device in found], "\n".join(lines))


@click.command("doctor")
@common.json_option
def doctor_command(as_json: bool) -> None:
    """Check the installation; exit with 5 if models cannot be compiled for the CPU."""
    import tvm_edge
    from tvm_edge.errors import MissingDependencyError

    diagnosis = tvm_edge.doctor()
    common.emit(as_json, diagnosis.to_dict(), str(diagnosis))
    if not diagnosis.healthy:
        sys.exit(MissingDependencyError.exit_code)
