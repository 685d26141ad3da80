// Reads the errors of a PJRT plugin.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_ERRORS_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_ERRORS_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

std::string ErrorText(const PJRT_Api* plugin, PJRT_Error* error);

void DestroyError(const PJRT_Api* plugin, PJRT_Error* error);

// Returns the error's text and destroys the error.
std::string TakeErrorText(const PJRT_Api* plugin, PJRT_Error* error);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_ERRORS_H_
