// Reports mistakes of handlers that XLA's FFI does not report.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_FFI_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_FFI_CHECKS_H_

#include <string>

#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext {

XLA_FFI_Error* MakeFfiError(const XLA_FFI_Api* api, const std::string& text,
                            XLA_FFI_Error_Code code);

// Adds checks to two functions of this process's XLA: for handlers that ask for
// user data, which torch_xla does not pass (XLA would abort the process), and
// for states of an unregistered type (XLA would later report that there is no
// state). Call this before a handler is registered.
void AddFfiChecks();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_FFI_CHECKS_H_
