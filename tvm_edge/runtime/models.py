"""Choice of an artifact's models for a run: their inputs, outputs and entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tvm_edge.errors import InputError, near_matches
from tvm_edge.runtime.entry import ALL, Entry, function_of
from tvm_edge.runtime.info import ModelInfo

__all__ = ["Models"]

_T = TypeVar("_T")


class Models:
    """Models that one call runs.

    Parameters
    ----------
    info : ModelInfo
    models : sequence of str, optional
        Names of models; default all. All together run by one function, in which kernels of
        different models may be merged; some run one after the other.

    Attributes
    ----------
    asked : tuple of str or None
        Names of models as they were given.
    entries : tuple of Entry
        To be run in this order.
    numbers : tuple of int
        The models that run by themselves, by their place in the artifact; empty for all together.
    inputs, outputs : tuple of TensorSpec
        Of those that run.

    Raises
    ------
    InputError
        Not a list, or not names of models that the artifact has.
    """

    def __init__(self, info: ModelInfo, models: Sequence[str] | None = None) -> None:
        self.numbers = () if models is None else _numbers(info, models)
        self.asked = None if models is None else tuple(models)
        if self.numbers:
            parts = [info.models[number] for number in self.numbers]
            self.entries = tuple(
                Entry(function_of(number), part.inputs, part.outputs)
                for number, part in zip(self.numbers, parts, strict=True)
            )
        else:
            every = range(len(info.inputs)), range(len(info.outputs))
            self.entries = (Entry(ALL, *map(tuple, every)),)
        self._all_inputs, self._all_outputs = info.inputs, info.outputs
        self.inputs = tuple(info.inputs[i] for entry in self.entries for i in entry.inputs)
        self.outputs = tuple(info.outputs[i] for entry in self.entries for i in entry.outputs)

    def split(self, values: Sequence[_T]) -> Iterator[tuple[Entry, Sequence[_T]]]:
        """Split what belongs to :attr:`inputs` by entry."""
        first = 0
        for entry in self.entries:
            yield entry, values[first : first + len(entry.inputs)]
            first += len(entry.inputs)

    def given(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """`inputs` without those of models that the artifact has and that do not run."""
        if not self.numbers or not isinstance(inputs, Mapping):
            return inputs
        idle = {spec.name for spec in self._all_inputs} - {spec.name for spec in self.inputs}
        return {name: value for name, value in inputs.items() if name not in idle}

    def check_outputs(self, outputs: Sequence[str] | None) -> None:
        """Refuse outputs of models that do not run.

        Raises
        ------
        InputError
        """
        if not self.numbers or outputs is None:
            return
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            return  # what is no list is refused by whoever looks the names up
        idle = {spec.name for spec in self._all_outputs} - {spec.name for spec in self.outputs}
        for name in outputs:
            if name in idle:
                model = str(name).partition("/")[0]
                raise InputError(
                    f"the output {name!r} is of the model {model!r}, which does not run; add "
                    f"{model!r} to models, or leave the output out",
                    name=str(name),
                    expected=", ".join(spec.name for spec in self.outputs),
                    got=str(name),
                )


def _numbers(info: ModelInfo, models: Sequence[str]) -> tuple[int, ...]:
    """The models that run by themselves, in the artifact's order; none if all run together."""
    names = [part.name for part in info.models]
    if not names:
        raise InputError(
            "this artifact has one model, without a name; leave models out, or compile a dict of "
            "models",
            name="models",
            expected="None",
            got=repr(models),
        )
    if isinstance(models, str) or not isinstance(models, Iterable):
        raise InputError(
            f"models is {models!r}; pass a list of names, of {', '.join(map(repr, names))}",
            name="models",
            expected="a list",
            got=repr(models),
        )
    wanted = list(models)
    for name in wanted:
        if name not in names:
            raise InputError(
                f"the artifact has no model {name!r}; {near_matches(str(name), names)}",
                name="models",
                expected=", ".join(names),
                got=repr(name),
            )
    if not wanted:
        raise InputError(
            f"models is empty, and nothing would run; name some of "
            f"{', '.join(map(repr, names))}, or leave it out for all",
            name="models",
            expected=", ".join(names),
            got="[]",
        )
    found = tuple(number for number, name in enumerate(names) if name in wanted)
    return () if len(found) == len(names) else found
