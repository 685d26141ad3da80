// Recognizes custom-call targets that are XLA's own.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_BUILTIN_TARGETS_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_BUILTIN_TARGETS_H_

#include <string_view>

namespace torch_xla_ext {

// Whether the untyped target `name` is one that XLA registers for itself:
// helpers for its compiled code, from XLA and from the C library.
bool IsBuiltinTarget(std::string_view name, const void* function);

// Whether XLA's compiler treats calls of `name` as one of its own operations,
// with certain operands and attributes. It does not check these: other calls
// crash the process, even if a function is registered under the name.
bool IsCompilerTarget(std::string_view name);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_BUILTIN_TARGETS_H_
