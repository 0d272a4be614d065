"""A server of TVM's, plain or greeting as another version: ``python FILE PORT [VERSION]``."""

from __future__ import annotations

import sys

from tvm.rpc.server import PopenRPCServerState

from tvm_edge.rpc.board import register
from tvm_edge.rpc.board_info import hello

if __name__ == "__main__":
    port, *version = sys.argv[1:]
    if version:
        greeting = hello()
        greeting["versions"] = {**greeting["versions"], "tvm": version[0]} if version[0] else {}
        register({"hello": lambda _: greeting})
    PopenRPCServerState("127.0.0.1", int(port), int(port) + 1, silent=True).thread.join()
