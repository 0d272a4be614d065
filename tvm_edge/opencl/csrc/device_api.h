// TVM's view of the devices, and its timer.
#ifndef TVM_EDGE_OPENCL_DEVICE_API_H_
#define TVM_EDGE_OPENCL_DEVICE_API_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/timer.h>

namespace tvm_edge::opencl {

/*! \brief The DeviceAPI of kDLOpenCL; never freed. */
tvm::runtime::DeviceAPI* OpenCLDeviceAPI();

/*! \brief A timer of the commands on the calling thread's stream, by the device's clock. */
tvm::runtime::Timer CreateTimer(tvm::Device device);

/*!
 * \brief A CPU tensor over the memory of an OpenCL one, without a copy; the view keeps it alive.
 *
 * Throws ValueError where the device does not share memory with the host.
 */
tvm::ffi::Tensor HostView(const tvm::ffi::Tensor& tensor);

}  // namespace tvm_edge::opencl

#endif  // TVM_EDGE_OPENCL_DEVICE_API_H_
