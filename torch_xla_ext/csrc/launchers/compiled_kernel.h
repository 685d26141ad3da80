// Launches a compiled kernel (a cubin or PTX) through the CUDA driver, such as
// Triton's kernels and those of torch_xla_ext.cuda_kernel.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_COMPILED_KERNEL_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_COMPILED_KERNEL_H_

#include <cuda.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace torch_xla_ext {

// A launch, as xla_kernels/launch.py describes it.
struct CompiledKernelLaunch {
  // A cubin, fatbin, or the text of PTX.
  std::string_view module;
  // The key of the loaded function: a digest of the module and the kernel's
  // name.
  std::string_view digest;
  // The function's name in the module.
  std::string kernel;
  // Grid in blocks, block in threads, cluster in blocks.
  std::array<unsigned, 3> grid, block, cluster;
  // Dynamic shared memory, in bytes.
  int shared = 0;
  bool cooperative = false;
  // Programmatic dependent launch.
  bool dependent = false;
  // Whether the blocks of a cluster are spread over the multiprocessors.
  bool spread = false;
  // Words: "t0" is operand 0's address, "r1" result 1's, and "x" is followed by
  // the bytes of a value in hexadecimal. "mt0:" is a tensor map of operand 0,
  // and is followed by its description (tensor_map.h) in hexadecimal.
  std::string_view parameters;
};

// The addresses of a call's operands or results.
struct BufferAddresses {
  size_t size;
  std::function<void*(size_t)> address;
};

// Enqueues the kernel on `stream`, whose context is the current one. Throws
// std::exception with a text that does not name the kernel.
void LaunchCompiledKernel(CUstream stream, const CompiledKernelLaunch& launch,
                          const BufferAddresses& operands,
                          const BufferAddresses& results);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_COMPILED_KERNEL_H_
