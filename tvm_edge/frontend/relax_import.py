"""Import a Relax module to the normal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm
from tvm import relax, tirx

from tvm_edge.errors import InputError, InvalidModelError, near_matches
from tvm_edge.frontend.check_sorts import check_sorts
from tvm_edge.frontend.given_inputs import GivenLength
from tvm_edge.frontend.normal_form import ImportedModel
from tvm_edge.frontend.relax_costs import source_nodes
from tvm_edge.frontend.result_names import name_results
from tvm_edge.frontend.specs import output_specs, spec_of
from tvm_edge.report import Dim, TensorSpec
from tvm_edge.report.dims import by_name

__all__ = ["import_relax"]


def import_relax(
    module: tvm.IRModule, input_shapes: Mapping[str, Sequence[GivenLength]]
) -> ImportedModel:
    """Bring a Relax module to the normal form.

    Parameters
    ----------
    module : tvm.IRModule
        With a function ``main`` of tensors; outputs are named ``output_<i>``.
    input_shapes : mapping of str to sequence of GivenLength
        Shapes of parameters with symbolic dimensions.

    Raises
    ------
    InvalidModelError, InputError
    """
    if "main" not in [gv.name_hint for gv in module.get_global_vars()] or not isinstance(
        module["main"], relax.Function
    ):
        raise InvalidModelError(
            "the module has no Relax function 'main'; name the entry function main"
        )
    try:
        relax.analysis.well_formed(module)
    except (ValueError, TypeError, RuntimeError) as err:  # TVM's verdict is an exception
        raise InvalidModelError(
            f"the Relax module is not well-formed: {str(err).strip().splitlines()[0][:300]}; "
            "tvm.relax.analysis.well_formed(module) repeats the check"
        ) from err
    module, dims = _fix_inputs(module, input_shapes)
    main = module["main"]
    inputs = []
    for param in main.params:
        if not isinstance(param.ty, relax.TensorType):
            raise InvalidModelError(
                f"the parameter {param.name!r} of main is a {param.ty}, and inputs must be "
                "tensors; pass tensors one by one"
            )
        inputs.append(_input_spec(param, dims))
    inputs = check_sorts(main, inputs)
    fields = len(main.ret_ty.fields) if isinstance(main.ret_ty, relax.TupleType) else 1
    outputs = output_specs([f"output_{i}" for i in range(fields)], main)
    nodes, results = source_nodes(main)
    named = name_results(tvm.IRModule(dict(module.functions_items()), attrs=module.attrs), results)
    return ImportedModel("relax", named, tuple(inputs), outputs, tuple(nodes))


def _fix_inputs(
    module: tvm.IRModule, shapes: Mapping[str, Sequence[GivenLength]]
) -> tuple[tvm.IRModule, dict[tirx.Var, Dim]]:
    """Put numbers in the place of variables, and return what is said of those that stay."""
    main = module["main"]
    params = {p.name: p for p in main.params}
    bindings: dict[tirx.Var, int] = {}
    dims: dict[tirx.Var, Dim] = {}
    for name, shape in shapes.items():
        if name not in params:
            raise InputError(
                f"input_shapes names {name!r}, which is no parameter of main; "
                f"{near_matches(name, params)}",
                name=name,
            )
        lengths = list(params[name].ty.shape.values)
        if len(lengths) != len(shape):
            raise InputError(
                f"input_shapes gives {name!r} {len(shape)} dimensions {tuple(shape)}, and main "
                f"has {len(lengths)}; give one length per dimension",
                name=name,
            )
        for length, given in zip(lengths, shape, strict=True):
            if isinstance(length, tirx.Var):
                if isinstance(given, int):
                    bindings[length] = given
                elif given is not None:
                    dims[length] = given if isinstance(given, Dim) else Dim(given)
            elif not isinstance(given, int) or int(length) != given:
                raise InputError(
                    f"input_shapes gives {name!r} the shape {tuple(shape)}, and main declares "
                    f"{tuple(str(d) for d in lengths)}; only symbolic dimensions can be chosen",
                    name=name,
                )
    if bindings:
        module = relax.transform.BindSymbolicVars(bindings, "main")(module)
    by_name(dims.values())
    return module, dims


def _input_spec(param: relax.Var, given: Mapping[tirx.Var, Dim]) -> TensorSpec:
    """Return the signature of a parameter: lengths are positive numbers, or variables."""
    spec = spec_of(param.name, param.ty)
    lengths = list(param.ty.shape.values) if param.ty.shape is not None else [None]
    if not all(
        isinstance(d, tirx.Var) or (isinstance(d, tirx.IntImm) and int(d) > 0) for d in lengths
    ):
        raise InputError(
            f"the parameter {spec} has dimensions that are neither positive numbers nor variables; "
            f"fix them with input_shapes={{{spec.name!r}: (...)}}",
            name=spec.name,
            expected="a shape of numbers and variables",
            got=str(spec.shape),
        )
    shape: list[int | str] = []
    own: dict[str, Dim] = {}
    for axis, length in enumerate(lengths):
        if isinstance(length, tirx.IntImm):
            shape.append(int(length))
            continue
        is_batch = axis == 0 and len(lengths) > 1
        dim = given.get(length, Dim(str(length), min=0 if is_batch else 1))
        own.setdefault(dim.name, replace(dim, typical=dim.assumed(is_batch)))
        shape.append(dim.name)
    return replace(spec, shape=tuple(shape), dims=tuple(own.values()))
