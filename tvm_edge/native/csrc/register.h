// Functions by which whoever loads this library has it add its own to TVM's registry.
#pragma once

extern "C" {

/*! \brief Add the functions of models on CPUs; more than once does no harm. */
__attribute__((visibility("default"))) void TvmEdgeNativeRegister();

/*! \brief Add OpenCL's. Returns 0 if TVM has OpenCL of its own (opencl/csrc/register.cc). */
__attribute__((visibility("default"))) int TvmEdgeOpenCLRegister();
}
