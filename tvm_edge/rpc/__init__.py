"""Models on boards: the server there, and the session with it here.

On the board ``tvm-edge rpc-server`` supervises (:mod:`~tvm_edge.rpc.server`) TVM's own RPC server
(:mod:`~tvm_edge.rpc.listener`). A session of it has functions that load artifacts and run them as
at home (:mod:`~tvm_edge.rpc.board`), so that timings are free of the network. Here a process of its
own holds the session (:mod:`~tvm_edge.rpc.agent`), because TVM's client waits for ever.
"""

import tvm_edge.runtime_tier  # noqa: F401  TVM, before others import it
from tvm_edge.rpc.board_info import BoardDevice, BoardInfo
from tvm_edge.rpc.remote import Remote, connect
from tvm_edge.rpc.remote_model import RemoteModel

__all__ = ["BoardDevice", "BoardInfo", "Remote", "RemoteModel", "connect"]
