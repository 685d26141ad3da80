// Which custom-call targets are XLA's own.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_XLAS_OWN_H_
#define TORCH_XLA_EXT_CSRC_CALLS_XLAS_OWN_H_

#include <string_view>

namespace torch_xla_ext {

// Whether the untyped target `name` is one of those that XLA registers for
// itself: helpers of its compiled code, its own and the C library's.
bool IsXlasOwn(std::string_view name, const void* function);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_XLAS_OWN_H_
