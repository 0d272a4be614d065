"""Choice of an artifact's models for a run: their inputs, outputs and entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm

from tvm_edge.errors import InputError
from tvm_edge.runtime.info import ModelInfo
from tvm_edge.runtime.inputs import Bound, bind_inputs
from tvm_edge.runtime.once import once
from tvm_edge.runtime.outputs import check_names, named_outputs
from tvm_edge.runtime.range_check import warn_of_overflow
from tvm_edge.runtime.signature import Signature

__all__ = ["Models"]


class Models:
    """Models that one call runs.

    Parameters
    ----------
    info : ModelInfo
    signature : Signature
        The same in C++.
    models : sequence of str, optional
        Names of models; default all. All together run by one function, in which kernels of
        different models may be merged; some run one after the other.

    Attributes
    ----------
    asked : tuple of str or None
        Names of models as they were given.
    numbers : tuple of int
        The models that run by themselves, by their place in the artifact; empty for all together.
    inputs, outputs : tuple of TensorSpec
        Of those that run.

    Raises
    ------
    InputError
        Not a list, or not names of models that the artifact has.
    """

    def __init__(
        self, info: ModelInfo, signature: Signature, models: Sequence[str] | None = None
    ) -> None:
        self.signature = signature
        self.numbers = () if models is None else _numbers(info, signature, models)
        self.asked = None if models is None else tuple(models)
        self._report = info.report
        self._all_inputs = info.inputs
        if self.numbers:
            parts = [info.models[number] for number in self.numbers]
            self._positions: Sequence[int] = [i for part in parts for i in part.inputs]
            outputs: Sequence[int] = [i for part in parts for i in part.outputs]
        else:
            self._positions, outputs = range(len(info.inputs)), range(len(info.outputs))
        self.inputs = tuple(info.inputs[i] for i in self._positions)
        self.outputs = tuple(info.outputs[i] for i in outputs)

    def given(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """`inputs` without those of models that the artifact has and that do not run."""
        if not self.numbers or not isinstance(inputs, Mapping):
            return inputs
        idle = {spec.name for spec in self._all_inputs} - {spec.name for spec in self.inputs}
        return {name: value for name, value in inputs.items() if name not in idle}

    @once
    def every_output(self) -> dict[int, str]:
        """Positions and names of all outputs."""
        return {i: spec.name for i, spec in enumerate(self.outputs)}

    def wanted(self, outputs: Sequence[str] | None) -> dict[int, str]:
        """Positions and names of the outputs to return; default all.

        Raises
        ------
        InputError
            Not a list, or not names of outputs of models that run.
        """
        if outputs is None:
            return self.every_output
        check_names(self.outputs, outputs)
        every = set(self.every_output.values())
        for name in outputs:
            if not isinstance(name, str) or name not in every:
                self.signature.refuse_output(self.asked, str(name))
        return {i: name for i, name in self.every_output.items() if name in outputs}

    def named(
        self,
        tensors: Iterable[tvm.runtime.Tensor],
        wanted: Mapping[int, str],
        device_outputs: bool = False,
    ) -> dict[str, Any]:
        """Return results by name, as :func:`named_outputs`, and warn of those that overflowed."""
        outputs = named_outputs(tensors, wanted, self.outputs, device_outputs)
        return outputs if device_outputs else self.checked(outputs)

    def checked(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Return `outputs`, and warn of those that overflowed."""
        warn_of_overflow(outputs, self._report)
        return outputs

    def bind(self, inputs: Mapping[str, Any], devices: Sequence[tvm.runtime.Device]) -> list[Bound]:
        """Return inputs in order; `devices` are those of the artifact's inputs.

        Raises
        ------
        InputError
            What is given is not a dict of arrays of the right names.
        """
        return bind_inputs(
            self.inputs,
            self.given(inputs),
            devices if not self.numbers else [devices[i] for i in self._positions],
            lambda names: self.signature.refuse_names(self.asked, names),
            lambda at, dtype, shape: self.signature.check(self._positions[at], dtype, shape),
        )


def _numbers(info: ModelInfo, signature: Signature, models: Sequence[str]) -> tuple[int, ...]:
    """The models that run by themselves, in the artifact's order; none if all run together."""
    names = [part.name for part in info.models]
    if names and (isinstance(models, str) or not isinstance(models, Iterable)):
        raise InputError(
            f"models is {models!r}; pass a list of names, of {', '.join(map(repr, names))}",
            name="models",
            expected="a list",
            got=repr(models),
        )
    return signature.choose([str(name) for name in models])
