"""Decisions of the policy of parallel fusion on groups that were measured; no device is needed.

It decides on the groups that ``results/fusion/h100.json.gz`` has the times of, and on an H100's
data sheet. Printed is what it takes, and beside that what it would take if its two
constants had been fitted without a network, for the groups with an operator of that network
(leave-one-network-out).

Groups are those of ``results/fusion/groups.json`` whose members are a kernel each. The file has
them by commit of the compiler that they were measured with, and of each all variants: ``off``,
``concurrent``, and kernels as one, ``"1 0"`` for members 1 and 0 in that order, which are all
members or some, and ``"1 0 even"`` for those in a launch of so few work-groups that they are spread
evenly. The latest commit with the times of what the policy takes counts.

``--add ROWS --commit NAME`` adds what ``run parallel_fusion --target cuda --orders --json ROWS``
measured on the same device, or begins a file (``--data``) of another one. What ``auto`` took
there is what the policy takes here: add rows with the commit that measured them.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest import mock

from benchmarks.common.options import Parser
from benchmarks.common.paths import RESULTS
from benchmarks.fusion.workloads import NETWORKS
from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules import launch_time, parallel_policy
from tvm_edge.schedules.launch_work import Launch
from tvm_edge.schedules.parallel_policy import Group, Problem, choose_groups

_DATA = RESULTS / "fusion" / "h100.json.gz"
_HOW = ("stream", "graph")
_LOSS = 0.98  # bar: no group that is taken is slower than this
_SHARED = tuple(i / 20 for i in range(13))
_LEAST = tuple(i / 100 for i in range(1, 21))
_CAUTION = 0.9  # of the gain there is: so much less is given for a policy that takes fewer groups
_BARS = {("stream", 2): 1.35, ("stream", 3): 1.75, ("graph", 2): 1.2, ("graph", 3): 1.5}

Constants = tuple[float, float]
"""``launch_time._SHARED`` and ``parallel_policy.LEAST_GAIN``."""


@dataclass(frozen=True)
class Row:
    """A group that was measured.

    Attributes
    ----------
    members : tuple of str
        Network and node.
    kernels : tuple of tuple of Launch
        The launches of each member.
    commits : tuple of dict
        What was measured, the latest first: microseconds by how they were launched and by variant.
    """

    members: tuple[str, ...]
    kernels: tuple[tuple[Launch, ...], ...]
    commits: tuple[dict[str, dict[str, float]], ...]

    def has_network(self, network: str) -> bool:
        return any(member.startswith(f"{network}/") for member in self.members)

    def gain(self, how: str, variant: str) -> float | None:
        """Speed-up of a variant over its kernels apart; ``None`` if not measured."""
        for us in self.commits:
            found = us.get(how, {})
            if {"off", variant} <= found.keys():
                return found["off"] / found[variant]
        return None

    def best(self, how: str) -> float | None:
        """The gain of the fastest of all orders and parts, 1 where nothing gains."""
        found = [
            self.gain(how, variant)
            for variant in {name for us in self.commits for name in us.get(how, {})}
            if variant[0].isdigit()
        ]
        known = [gain for gain in found if gain is not None]
        return max(1.0, *known) if known else None


# ------------------------------------------------------------------------------------ the data


def read(path: Path) -> tuple[DeviceSpec, list[Row]]:
    """The device and the groups of a file."""
    with gzip.open(path, "rt") as file:
        data = json.load(file)
    rows: dict[tuple[str, ...], list[dict[str, dict[str, float]]]] = {}
    for measured in data["rows"]:  # commits in their order
        us = {
            # The least of the rounds: what else the host does only adds to a time.
            how: {name: min(times) for name, times in found.items()}
            for how, found in measured["us"].items()
        }
        rows.setdefault(tuple(measured["members"]), []).insert(0, us)
    kernels = {
        member: [tuple(Launch(*each) for each in kernel) for kernel in found]
        for member, found in data["kernels"].items()
    }
    made = [
        Row(members, tuple(kernels[member][0] for member in members), tuple(found))
        for members, found in rows.items()
        if all(len(kernels[member]) == 1 for member in members)
    ]
    return _device(data), made


def _device(data: dict[str, Any]) -> DeviceSpec:
    fields = data["device"]
    return DeviceSpec(**{**fields, "sub_groups": tuple(fields["sub_groups"])})


def add(path: Path, rows: Path, commit: str) -> None:
    """Add what was measured to a file; what that commit has there of these groups is replaced."""
    if not rows.exists():
        raise SystemExit(
            f"no file {rows}; run: python -m benchmarks run parallel_fusion --orders --json {rows}"
        )
    data: dict[str, Any] = {"device": None, "kernels": {}, "rows": []}
    if path.exists():
        with gzip.open(path, "rt") as file:
            data = json.load(file)
    for row in json.loads(rows.read_text()):
        members = row["title"].split(": ", 1)[1].split(" + ")
        for number, member in enumerate(members):
            alone = row["built"][f"only{number}"]
            if data["device"] not in (None, alone["device"]):
                raise SystemExit(f"{rows} is of another device than {path}; use another --data")
            data["device"] = alone["device"]
            data["kernels"][member] = alone["launches"]
        us = {how: dict(_named(found, members)) for how, found in row["us"].items()}
        kernels = [data["kernels"][member] for member in members]
        if all(len(each) == 1 for each in kernels):
            launches = tuple(tuple(Launch(*each) for each in kernel[0]) for kernel in kernels)
            taken = decide(Row(tuple(members), launches, ()), _device(data))
            for how, found in row["us"].items():
                if "auto" in found:  # of some members, perhaps, which orders are not
                    us[how].setdefault(taken, [round(each, 3) for each in found["auto"]])
        data["rows"] = [
            other
            for other in data["rows"]
            if (other["members"], other["commit"]) != (members, commit)
        ]
        data["rows"].append({"members": members, "commit": commit, "us": us})
    with gzip.open(path, "wt") as file:
        json.dump(data, file, separators=(",", ":"))


def _named(us: dict[str, list[float]], members: list[str]) -> Iterator[tuple[str, list[float]]]:
    """Times by variant; ``fused`` and ``auto`` are some order's of ``--orders``, or of a part."""
    orders = list(itertools.permutations(range(len(members))))
    for name, times in us.items():
        rounded = [round(each, 3) for each in times]
        if name.startswith(("order", "even")):
            order = " ".join(map(str, orders[int(name.removeprefix("order").removeprefix("even"))]))
            yield order + (" even" if name.startswith("even") else ""), rounded
        elif name in ("off", "concurrent"):
            yield name, rounded


# -------------------------------------------------------------------------------- the decisions


def decide(row: Row, spec: DeviceSpec) -> str:
    """The variant that the policy takes."""
    nothing: list[list[int]] = [[] for _ in row.kernels]
    problem = Problem(nothing, row.kernels.__getitem__, spec, [0] * len(nothing))
    taken: list[Group] = [group for group in choose_groups(problem) if group.taken]
    members = [member for group in taken for member in group.members]
    if not members:
        return "off"
    is_even = any(launch_time.spread_over([row.kernels[member] for member in members], spec))
    return " ".join(map(str, members)) + (" even" if is_even else "")


def decisions(rows: Sequence[Row], spec: DeviceSpec, constants: Constants) -> list[str]:
    """Variants that the policy takes of each group with other constants."""
    shared, least = constants
    with (
        mock.patch.object(launch_time, "_SHARED", shared),
        mock.patch.object(parallel_policy, "LEAST_GAIN", least),
    ):
        return [decide(row, spec) for row in rows]


def fitted(rows: Sequence[Row], choices: dict[Constants, list[str]], out: str) -> Constants:
    """The constants that are best for the groups without a network.

    Those with the fewest groups that lose, and not much less gain than the best of these; of them
    the most cautious: what gains a little on these groups may lose on others.
    """
    lost: dict[Constants, int] = {}
    gained: dict[Constants, float] = {}
    for constants, chosen in choices.items():
        gains = [
            row.gain(how, variant) or 1.0
            for row, variant in zip(rows, chosen, strict=True)
            if variant != "off" and not (out and row.has_network(out))
            for how in _HOW
        ]
        lost[constants] = sum(gain < _LOSS for gain in gains)
        gained[constants] = sum(gain - 1 for gain in gains)
    fewest = [constants for constants in choices if lost[constants] == min(lost.values())]
    enough = _CAUTION * max(gained[constants] for constants in fewest)
    left = [constants for constants in fewest if gained[constants] >= enough]
    least = max(least for _, least in left)
    alike = sorted(constants for constants in left if constants[1] == least)
    return alike[len(alike) // 2]


# ---------------------------------------------------------------------------------- the figures


def summary(decided: Iterable[tuple[Row, str]]) -> Iterator[str]:
    """Groups that are taken and their gains: pairs, triples and all, on a stream and in a graph."""
    every = list(decided)
    for how in _HOW:
        for sizes in ((2,), (3,), (2, 3)):
            rows = [(row, v) for row, v in every if len(row.members) in sizes and row.best(how)]
            taken = [(row, row.gain(how, v)) for row, v in rows if v != "off"]
            gains = [gain for _, gain in taken if gain is not None]
            kept = sum(gain - 1 for gain in gains)
            there = sum((row.best(how) or 1) - 1 for row, _ in rows)
            unknown = sum((row.best(how) or 1) - 1 for row, gain in taken if gain is None)
            size = " or ".join(map(str, sizes))
            text = f"{how}, {size} members: {len(taken)} of {len(rows)} taken"
            if gains:
                bar = f" (bar {_BARS[how, sizes[0]]})" if len(sizes) == 1 else ""
                text += (
                    f", {len(gains)} of them measured: {geometric_mean(gains):.2f} "
                    f"[{min(gains):.2f}–{max(gains):.2f}]{bar}, "
                    f"{sum(gain > 1 for gain in gains) / len(gains):.0%} gain, "
                    f"{sum(gain < _LOSS for gain in gains)} lose more than 2 %; "
                    f"{kept / (there - unknown):.0%} of the gain that there is"
                )
            yield text


def losers(decided: Iterable[tuple[Row, str]]) -> Iterator[str]:
    """The groups that were taken and lose."""
    for row, variant in decided:
        for how in _HOW:
            gain = row.gain(how, variant)
            if gain is not None and gain < 1:
                yield f"  {how} {gain:.3f}: {' + '.join(row.members)} as {variant}"


def main(arguments: Sequence[str]) -> None:
    """Print the figures, or add measurements."""
    parser = Parser("parallel_policy", __doc__)
    parser.add_argument("--data", type=Path, default=_DATA)
    parser.add_argument("--add", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args(arguments)
    if options.add is not None:
        if options.commit is None:
            parser.error("--add needs --commit, the compiler's that was measured")
        add(options.data, options.add, options.commit)
        return
    spec, rows = read(options.data)
    constants = (launch_time._SHARED, parallel_policy.LEAST_GAIN)
    print(f"{len(rows)} groups of {spec.name}; constants {constants}")
    now = list(zip(rows, decisions(rows, spec, constants), strict=True))
    print("\n".join([*summary(now), *losers(now)]))
    before = list(zip(rows, decisions(rows, spec, (0.0, 0.2)), strict=True))
    print("\nwithout groups that share a core, at least 20 % predicted")
    print("\n".join([*summary(before), *losers(before)]))
    print("\nwith each network left out in turn; a group counts once for each of its networks")
    choices = {pair: decisions(rows, spec, pair) for pair in itertools.product(_SHARED, _LEAST)}
    print(f"fitted to all: {fitted(rows, choices, '')}")
    held: list[tuple[Row, str]] = []
    for network in NETWORKS:
        best = fitted(rows, choices, network)
        own = [
            (row, variant)
            for row, variant in zip(rows, choices[best], strict=True)
            if row.has_network(network)
        ]
        print(f"without {network}: {best}; {len(own)} groups have it")
        held += own
    print("\n".join([*summary(held), *sorted(set(losers(held)))]))
