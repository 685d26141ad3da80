// Registers targets that have a handler for the stage `record` of XLA FFI 0.5.
// Such a handler puts its own commands into XLA's command buffer (a CUDA
// graph).
//
// The PJRT extension for targets accepts only four stages. But when XLA asks a
// handler for its traits, it passes the handler the functions of its FFI, one
// of which registers all stages. The declarations are those of
// xla/ffi/api/c_api.h in jaxlib 0.12, which only appended to those of this
// wheel's headers.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_RECORD_STAGE_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_RECORD_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "torch_xla_ext/csrc/pjrt_shim/targets.h"
#include "xla/ffi/api/c_api.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// The first version that has the stage.
inline constexpr int kRecordMinorVersion = 5;

// A target that is registered only to receive the functions of a plugin's FFI.
inline constexpr char kFfiProbe[] = "torch_xla_ext.ffi";

struct RegisterHandlerArgs {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ByteSpan name;
  XLA_FFI_ByteSpan platform;
  void* stages[5];  // instantiate, prepare, initialize, execute, record
  uint32_t traits;
};
static_assert(offsetof(RegisterHandlerArgs, stages) == 48 &&
                  offsetof(RegisterHandlerArgs, traits) == 88,
              "as in jaxlib 0.12");

// The arguments of XLA_FFI_Error_GetDetails, formerly XLA_FFI_Error_GetMessage.
struct ErrorDetailsArgs {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_Error* error;
  const char* message;
  int code;
};

// Whether `plugin` takes handlers of the stage.
bool TakesRecord(const PJRT_Api* plugin);

// Registers an FFI target with such a handler. Throws std::runtime_error, with
// the plugin's text, if the plugin rejects it.
void RegisterWithRecord(const PJRT_Api* plugin, const std::string& name,
                        const TargetFunctions& functions);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_RECORD_STAGE_H_
