// The key of a cached call: calls with equal keys differ only in their
// operands.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_CALL_KEY_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_CALL_KEY_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <string_view>
#include <type_traits>

namespace torch_xla_ext {

template <typename T>
void AppendBytes(const T& value, std::string* key) {
  static_assert(std::is_trivially_copyable_v<T>);
  key->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(std::string_view text, std::string* key);

// Appends a tensor's dtype, shape and device. Returns false for tensors whose
// calls are not cached: those with symbolic sizes, and subclasses of Tensor.
bool AppendTensor(const at::Tensor& tensor, std::string* key);

// The key of Python values; None if the call is not cached, because a value has
// no key or an operand requires a gradient. python/custom_call.cc documents the
// arguments.
pybind11::object CallKey(const pybind11::tuple& values,
                         const pybind11::object& operands,
                         const pybind11::object& other);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_CALL_KEY_H_
