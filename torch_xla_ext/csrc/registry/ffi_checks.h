// Errors in place of what XLA's FFI functions do on a handler's mistakes.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_FFI_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_FFI_CHECKS_H_

#include <string>

#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext {

XLA_FFI_Error* MakeFfiError(const XLA_FFI_Api* api, const std::string& text,
                            XLA_FFI_Error_Code code);

// Puts checks in front of two functions of this process's XLA, for handlers
// that ask for user data, which torch_xla does not pass (XLA would end the
// process), and for states of a type that is not registered (XLA would deny
// later that there is a state). To be called before XLA knows a handler.
void AddFfiChecks();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_FFI_CHECKS_H_
