// The extension by which XLA's CUDA plugin takes custom-call targets:
// xla/pjrt/c/pjrt_c_api_gpu_extension.h at openxla/xla 9084478f, which no
// Python package carries. It has been the same since 2024, but for members at
// the end
// (`traits` in PJRT 0.114) that the plugin does not insist on.
// tests/pjrt_bridge checks the sizes; every call on a GPU checks the rest.
#ifndef TORCH_XLA_EXT_CSRC_ABI_PJRT_GPU_EXTENSION_H_
#define TORCH_XLA_EXT_CSRC_ABI_PJRT_GPU_EXTENSION_H_

#include <cstddef>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_bridge {

struct RegisterCustomCallArgs {
  size_t struct_size;
  const char* function_name;
  size_t function_name_size;
  int api_version;  // 0: untyped, 1: XLA FFI
  void* handler_instantiate;
  void* handler_prepare;
  void* handler_initialize;
  void* handler_execute;
};
static_assert(sizeof(RegisterCustomCallArgs) == 64,
              "the plugin expects 64 bytes");

using RegisterCustomCall = PJRT_Error*(RegisterCustomCallArgs* args);

// Of type PJRT_Extension_Type_Gpu_Custom_Call.
struct CustomCallExtension {
  PJRT_Extension_Base base;
  RegisterCustomCall* custom_call;
};

}  // namespace torch_xla_ext::pjrt_bridge

#endif  // TORCH_XLA_EXT_CSRC_ABI_PJRT_GPU_EXTENSION_H_
