// Sets options of XLA's compiler for single programs.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_COMPILE_OPTIONS_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_COMPILE_OPTIONS_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// The options for programs that this thread compiles: fields of XLA's
// CompileOptionsProto in wire format, or an empty string.
const std::string& CompileOptions();
void SetCompileOptions(std::string fields);

// Makes `api` compile with these options.
void AddCompileOptions(PJRT_Api* api);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_COMPILE_OPTIONS_H_
