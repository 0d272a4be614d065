"""``tvm-edge devices`` and ``tvm-edge doctor``."""

from __future__ import annotations

import sys

import click

from tvm_edge.cli import loading, options, printing


@click.command("devices")
@options.rpc_options
@options.json_option
def devices_command(rpc_tracker: str | None, rpc_key: str | None, as_json: bool) -> None:
    """List the devices that models can run on, of this machine or a board."""
    import tvm_edge

    with loading.connected(rpc_tracker, rpc_key) as board:
        if board is not None:
            info = board.describe()
            printing.emit(as_json, info.to_dict(), str(info))
            return
    found = tvm_edge.devices()
    lines = [f"{d.target}:{d.index}  {d.name}  ({d.cores} cores)" for d in found]
    printing.emit(as_json, [device.to_dict() for device in found], "\n".join(lines))


@click.command("doctor")
@options.rpc_options
@options.json_option
def doctor_command(rpc_tracker: str | None, rpc_key: str | None, as_json: bool) -> None:
    """Check the installation; exit with 5 if models cannot be compiled for the CPU.

    Of a board: its drivers, and what makes its timings vary.
    """
    import tvm_edge
    from tvm_edge.errors import MissingDependencyError

    with loading.connected(rpc_tracker, rpc_key) as board:
        diagnosis = tvm_edge.doctor() if board is None else board.doctor()
    printing.emit(as_json, diagnosis.to_dict(), str(diagnosis))
    if not diagnosis.healthy:
        sys.exit(MissingDependencyError.exit_code)
