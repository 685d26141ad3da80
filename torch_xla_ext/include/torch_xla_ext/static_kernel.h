// Registers kernels that are linked into the wheel. For kernel.h; authors do
// not need it.
#ifndef TORCH_XLA_EXT_STATIC_KERNEL_H_
#define TORCH_XLA_EXT_STATIC_KERNEL_H_

#include <cstdint>

#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext {

// One platform's half of a kernel. The strings live for ever.
struct StaticKernel {
  const char* target;
  const char* platform;  // "CUDA" or "Host"
  XLA_FFI_Handler* ffi_entry;
  const char* schema;  // SchemaText()
};

// Stores `kernel` until torch_xla is imported, which registers the kernel's FFI
// entry and can report errors. Called by static initialisers; always returns
// true. Weak, because a torch_xla built from source (patches/) links kernels
// without this library, and has only their untyped entries.
__attribute__((weak)) bool AddStaticKernel(const StaticKernel& kernel);

// A function that returns the size of one dimension of a kernel's results
// (sizes.h).
struct StaticSize {
  const char* target;
  const char* name;
  int64_t (*function)(const int64_t* sizes, const uint8_t* dtypes);
};

// Stores `size` for Python, as AddStaticKernel stores a kernel.
__attribute__((weak)) bool AddStaticSize(const StaticSize& size);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_STATIC_KERNEL_H_
