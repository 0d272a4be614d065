"""Check that a board can run compiled code."""

from __future__ import annotations

from collections.abc import Iterable

from tvm_edge.errors import ArtifactError, DeviceUnavailableError
from tvm_edge.rpc.board_info import BoardInfo

__all__ = ["check_fit"]


def check_fit(
    what: str, architecture: str, features: Iterable[str], board: str, there: BoardInfo
) -> None:
    """Refuse what a board cannot run, before it is sent there.

    Parameters
    ----------
    what : str
        For the message.
    architecture : str
        As LLVM spells it.
    features : iterable of str
        Instruction sets that the code may use, in LLVM's names.
    board : str
        What messages call it.
    there : BoardInfo

    Raises
    ------
    ArtifactError
        Code for another architecture.
    DeviceUnavailableError
        An instruction set is missing there.
    """
    advice = (
        "compile it with the board as target: a preset or tag, or a dict such as "
        f'{{"kind": "llvm", "mtriple": "{there.architecture}-linux-gnu"}}'
    )
    if architecture != there.architecture:
        raise ArtifactError(
            f"{what} is compiled for {architecture}, and board {board} is "
            f"{there.architecture}; {advice}"
        )
    if there.features is not None:
        missing = sorted(set(features) - set(there.features))
        if missing:
            raise DeviceUnavailableError(
                f"{what} is compiled for a CPU with {', '.join(missing)}, which "
                f"board {board} lacks; {advice}"
            )
