// The GPU on which a launch function runs a kernel.
#ifndef KERNELS_COMMON_DEVICE_H_
#define KERNELS_COMMON_DEVICE_H_

#include <cuda_runtime.h>

#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext {

struct Device {
  int multiprocessors;
  int shared_memory;  // the maximum per block
  // The compute capability.
  int major;
  int minor;
};

inline Status GetDevice(Device* device) {
  int id = 0;
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&id)));
  const auto get = [id](int* value, cudaDeviceAttr attribute) {
    return CudaStatus(cudaDeviceGetAttribute(value, attribute, id));
  };
  XLA_KERNEL_RETURN_IF_ERROR(
      get(&device->multiprocessors, cudaDevAttrMultiProcessorCount));
  XLA_KERNEL_RETURN_IF_ERROR(
      get(&device->shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  XLA_KERNEL_RETURN_IF_ERROR(
      get(&device->major, cudaDevAttrComputeCapabilityMajor));
  return get(&device->minor, cudaDevAttrComputeCapabilityMinor);
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_DEVICE_H_
