"""Make a kernel of each operator, where TVM's own is not ours."""

from __future__ import annotations

import tvm
from tvm.relax import transform

from tvm_edge.ops.registry import OPERATORS

__all__ = ["legalize_ops"]


def legalize_ops() -> tvm.transform.Pass:
    """Return TVM's ``LegalizeOps`` with the kernels that families declare (``legalize=``)."""
    declared = OPERATORS.items()
    return transform.LegalizeOps(
        {name: facts.legalize for name, facts in declared if facts.legalize is not None}
    )
