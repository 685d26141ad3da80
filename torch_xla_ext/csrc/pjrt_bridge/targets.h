// Registers custom-call targets with a PJRT plugin, which has its own
// registries.
//
// A CUDA plugin takes them through an extension of its API. The declarations
// are those of xla/pjrt/c/pjrt_c_api_gpu_extension.h at openxla/xla 9084478f,
// which no Python package contains. They have not changed since 2024, except
// for appended members (`traits` in PJRT 0.114) that the plugin does not
// require. tests/pjrt_bridge checks the sizes; every call on a GPU tests the
// rest.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_TARGETS_H_
#define TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_TARGETS_H_

#include <cstddef>
#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext {

// How XLA calls a target. The values are those of the extension.
enum class TargetApi : int {
  kUntyped = 0,  // void f(stream, buffers, opaque, opaque_len, status)
  kFfi = 1,      // an XLA FFI handler
};

namespace pjrt_bridge {

struct RegisterCustomCallArgs {
  size_t struct_size;
  const char* function_name;
  size_t function_name_size;
  int api_version;  // a TargetApi
  void* handler_instantiate;
  void* handler_prepare;
  void* handler_initialize;
  void* handler_execute;
};
static_assert(sizeof(RegisterCustomCallArgs) == 64,
              "the plugin expects 64 bytes");

using RegisterCustomCall = PJRT_Error*(RegisterCustomCallArgs* args);

// The extension of type PJRT_Extension_Type_Gpu_Custom_Call.
struct CustomCallExtension {
  PJRT_Extension_Base base;
  RegisterCustomCall* custom_call;
};

// Whether `plugin` has the extension.
bool TakesTargets(const PJRT_Api* plugin);

// Registers a target with `plugin`. Throws std::runtime_error if the plugin has
// no such extension, or, with the plugin's text, if it rejects the target. The
// plugin ends the process if an untyped target of this name has another
// function.
void RegisterTarget(const PJRT_Api* plugin, const std::string& name,
                    void* function, TargetApi api);

}  // namespace pjrt_bridge
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_TARGETS_H_
