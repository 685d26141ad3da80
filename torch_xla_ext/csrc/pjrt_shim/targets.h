// Registers custom-call targets with a PJRT plugin, which has its own
// registries.
//
// A CUDA plugin accepts targets through two extensions of its API. The
// declarations are those of xla/pjrt/c/pjrt_c_api_gpu_extension.h and
// pjrt_c_api_ffi_extension.h of XLA at JAX 0.11.1, which no Python package
// contains. Members have only been appended since 2024: `traits` in version 3
// of the first extension, `type_info` in version 3 of the second one. An older
// plugin accepts structures that are longer than its own and ignores the rest.
// tests/pjrt_shim checks the sizes; every call on a GPU tests the rest.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_TARGETS_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_TARGETS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext {

// How XLA calls a target. The values are those of the extension.
enum class TargetApi : int {
  kUntyped = 0,  // void f(stream, buffers, opaque, opaque_len, status)
  kFfi = 1,      // an XLA FFI handler
};

// The functions of a target. The members besides `execute` are handlers of an
// FFI target's other stages, or null.
struct TargetFunctions {
  void* instantiate = nullptr;
  void* prepare = nullptr;
  void* initialize = nullptr;
  void* execute = nullptr;
  // CUDA graphs may capture the FFI target's calls, even if the handler itself
  // has not been defined with that trait.
  bool command_buffer_compatible = false;
  // A handler of the stage `record`, which puts commands into a command buffer
  // itself. XLA before FFI 0.5 captures `execute` instead, if it may.
  void* record = nullptr;
};

inline bool operator==(const TargetFunctions& a, const TargetFunctions& b) {
  return a.instantiate == b.instantiate && a.prepare == b.prepare &&
         a.initialize == b.initialize && a.execute == b.execute &&
         a.command_buffer_compatible == b.command_buffer_compatible &&
         a.record == b.record;
}

namespace pjrt_shim {

struct RegisterCustomCallArgs {
  size_t struct_size;
  const char* function_name;
  size_t function_name_size;
  int api_version;  // a TargetApi
  void* handler_instantiate;
  void* handler_prepare;
  void* handler_initialize;
  void* handler_execute;
  uint32_t traits;  // XLA_FFI_Handler_TraitsBits
};
static_assert(offsetof(RegisterCustomCallArgs, traits) == 64,
              "a plugin before version 3 of the extension expects 64 bytes");

using RegisterCustomCall = PJRT_Error*(RegisterCustomCallArgs* args);

// The extension of type PJRT_Extension_Type_Gpu_Custom_Call.
struct CustomCallExtension {
  PJRT_Extension_Base base;
  RegisterCustomCall* custom_call;
  bool handles_traits;  // since version 3
};

// Destroys a value of a type.
using Deleter = void(void* object);

struct TypeInfo {
  Deleter* deleter;
  void (*serialize)();    // unused
  void (*deserialize)();  // unused
};

struct RegisterTypeArgs {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* type_name;
  size_t type_name_size;
  int64_t type_id;      // in and out
  TypeInfo* type_info;  // since version 3
};
static_assert(offsetof(RegisterTypeArgs, type_info) == 40,
              "a plugin before version 3 of the extension expects 40 bytes");

using RegisterTypeFunction = PJRT_Error*(RegisterTypeArgs* args);

// The extension of type PJRT_Extension_Type_FFI; further members are not used.
struct FfiExtension {
  PJRT_Extension_Base base;
  RegisterTypeFunction* register_type;
};

// Whether `plugin` has the extension for targets.
bool TakesTargets(const PJRT_Api* plugin);

// Whether the extension also accepts a target's traits.
bool TakesTraits(const PJRT_Api* plugin);

// Registers a target with `plugin`. Throws std::runtime_error if the plugin has
// no such extension, or, with the plugin's text, if it rejects the target. The
// plugin aborts the process if an untyped target with this name has a different
// function. A plugin that does not know traits, or the stage `record`, ignores
// them.
void RegisterTarget(const PJRT_Api* plugin, const std::string& name,
                    const TargetFunctions& functions, TargetApi api);

// Registers a type of handlers' states, and returns its id: `id`, unless that
// is 0. Throws std::runtime_error as RegisterTarget does.
int64_t RegisterType(const PJRT_Api* plugin, const std::string& name,
                     int64_t id, Deleter* deleter);

}  // namespace pjrt_shim
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_TARGETS_H_
