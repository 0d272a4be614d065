"""Import optional packages with an error that names the pip command."""

from __future__ import annotations

import importlib
from types import ModuleType

from tvm_edge.errors import MissingDependencyError

__all__ = ["require", "require_compiler"]


def require_compiler() -> None:
    """Refuse where only TVM's runtime library is loaded.

    Raises
    ------
    MissingDependencyError
    """
    import tvm

    if not hasattr(tvm, "relax"):
        raise MissingDependencyError(
            "this needs TVM's compiler, and only its runtime library is loaded; "
            "unset TVM_USE_RUNTIME_LIB, or reinstall with: "
            "pip install --force-reinstall apache-tvm==0.27.0.post1"
        )


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module`, which the optional dependency group `extra` installs.

    Parameters
    ----------
    module : str
        Dotted name, for example ``"onnx"``.
    extra : str
        The group in ``pyproject.toml``.
    purpose : str
        What it is needed for, as the end of "is needed ...".

    Raises
    ------
    MissingDependencyError
        The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        # Only the package itself: a module that the package fails to import is another matter.
        if err.name is None or module.split(".")[0] != err.name.split(".")[0]:
            raise
        package = module.split(".")[0]
        raise MissingDependencyError(
            f"the package '{package}' is needed {purpose} and is not installed; "
            f"run: pip install 'tvm-edge[{extra}]'"
        ) from err
