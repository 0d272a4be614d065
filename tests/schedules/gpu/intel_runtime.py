"""Intel's OpenCL runtime for CPUs out of a wheel, for child processes of tests.

``pip install intel-opencl-rt intel-cmplr-lib-rt umf`` (Intel's licence: for tests only) puts the
runtime beside Python's own libraries, with an .icd file that names a folder of Intel's build
machines. OpenCL's loader and the dynamic linker read where things are when a process starts.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import tvm_edge.opencl
from tvm_edge.hardware.kinds import KINDS

__all__ = ["HOW_TO_GET_ONE", "intel_environment", "sub_group_environment"]

HOW_TO_GET_ONE = (
    "pip install intel-opencl-rt intel-cmplr-lib-rt umf; the test then writes an .icd file and "
    "sets OCL_ICD_VENDORS and LD_LIBRARY_PATH itself"
)


def intel_environment(folder: Path) -> dict[str, str | None] | None:
    """Changes to the environment by which a child runs on Intel's runtime; ``None`` without it.

    Parameters
    ----------
    folder : Path
        To write an .icd file into.
    """
    try:
        files = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        return None
    libraries = [file.locate() for file in files if file.name == "libintelocl.so"]
    if not libraries:
        return None
    library = Path(str(libraries[0])).resolve()
    # Without these two it does not load: they are packages of their own.
    if not all((library.parent / name).exists() for name in ("libsvml.so", "libumf.so.1")):
        return None
    (folder / "intel.icd").write_text(f"{library}\n")
    paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "OCL_ICD_VENDORS": str(folder),
        "OCL_ICD_FILENAMES": None,
        "TVM_EDGE_OPENCL": None,
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
    }


def sub_group_environment(folder: Path) -> dict[str, str | None] | None:
    """Return environment variables for a process whose device has Intel's sub-groups.

    Empty where this process has one already; ``None`` where none can be had. pocl 5
    says that it has ``cl_intel_subgroups``, and then finds no block reads when it links a kernel.
    """
    here = KINDS["opencl"].probe()
    if here is not None and {8, 16, 32} <= set(here.sub_groups):
        if "Portable" not in tvm_edge.opencl.device_info()["platform"]:
            return {}
    return intel_environment(folder)
