// The GPU on which a launch function runs a kernel.
#ifndef KERNELS_COMMON_DEVICE_H_
#define KERNELS_COMMON_DEVICE_H_

#include <cuda_runtime.h>

namespace torch_xla_ext {

struct Device {
  int multiprocessors;
  int shared_memory;            // per multiprocessor
  int shared_memory_per_block;  // the maximum
  // The compute capability.
  int major;
  int minor;

  bool IsSm90() const { return major == 9 && minor == 0; }
};

inline cudaError_t GetDevice(Device* device) {
  int id = 0;
  cudaError_t error = cudaGetDevice(&id);
  const auto get = [&](int* value, cudaDeviceAttr attribute) {
    if (error != cudaSuccess) return;
    error = cudaDeviceGetAttribute(value, attribute, id);
  };
  get(&device->multiprocessors, cudaDevAttrMultiProcessorCount);
  get(&device->shared_memory, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  get(&device->shared_memory_per_block,
      cudaDevAttrMaxSharedMemoryPerBlockOptin);
  get(&device->major, cudaDevAttrComputeCapabilityMajor);
  get(&device->minor, cudaDevAttrComputeCapabilityMinor);
  return error;
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_DEVICE_H_
