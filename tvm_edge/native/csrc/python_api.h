// Functions by which Python's CompiledModel uses sessions and artifacts.
#pragma once

namespace tvm_edge {

/*! \brief Add tvm_edge.runtime's functions to TVM's registry. */
void RegisterPythonApi();

}  // namespace tvm_edge
