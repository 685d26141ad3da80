// Which custom-call targets are XLA's own.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_BUILTIN_TARGETS_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_BUILTIN_TARGETS_H_

#include <string_view>

namespace torch_xla_ext {

// Whether the untyped target `name` is one that XLA registers for itself:
// helpers for its compiled code, from XLA and from the C library.
bool IsBuiltinTarget(std::string_view name, const void* function);

// Whether XLA's compiler takes a call of `name` for an operation of its own, of
// certain operands and attributes, which it does not check: other calls end the
// process, also if a function is registered under the name.
bool IsCompilerTarget(std::string_view name);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_BUILTIN_TARGETS_H_
