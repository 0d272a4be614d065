"""``python -m tvm_edge`` is ``tvm-edge``."""

from tvm_edge.cli.main import main

main()
