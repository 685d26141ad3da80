// Exports the functions that this wheel registers with a plugin, so that JAX
// can register them with its own XLA, which is newer than this wheel's.
#include <cstddef>

#include "torch_xla_ext/csrc/registry/stages.h"
#include "xla/ffi/api/c_api.h"

extern "C" {

// The handlers are asked for their version with this process's XLA API, of
// which they use only errors.
const XLA_FFI_Api* XLA_FFI_GetApi() {
  static const XLA_FFI_Api api = {};
  return &api;
}

// Replaces the handlers by handlers for a plugin that takes no traits.
void AdaptForPlugin(void** instantiate, void** execute) {
  torch_xla_ext::TargetFunctions functions;
  functions.instantiate = *instantiate;
  functions.execute = *execute;
  functions.command_buffer_compatible = true;
  functions = torch_xla_ext::FunctionsForPlugin("jax", functions, false);
  *instantiate = functions.instantiate;
  *execute = functions.execute;
}

// The XLA_FFI_TypeInfo of a type without a deleter of its own.
const void* DefaultTypeInfo() {
  static const struct {
    size_t struct_size;
    void* extension_start;
    void (*deleter)(void* state);
  } info = {sizeof(info), nullptr, &torch_xla_ext::DeleteState};
  return &info;
}

}  // extern "C"
