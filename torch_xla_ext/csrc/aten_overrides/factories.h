// zeros_like(x, device="cpu") and similar operators for an XLA tensor x.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FACTORIES_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FACTORIES_H_

#include <ATen/ATen.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>

namespace torch_xla_ext::aten_overrides {

// Makes a tensor like another one, perhaps on another device.
constexpr const char* kFactoriesLikeTensors[] = {
    "empty_like",
    "full_like",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones_like",
    "rand_like",
    "randint_like",
    "randint_like.Tensor",
    "randint_like.low_dtype",
    "randn_like",
    "zeros_like",
};

// The kernel for Functionalize. It returns a plain tensor if the result is not
// on an XLA device: upstream's wrapper of a CPU tensor has no storage, so
// numpy() would read foreign memory.
inline void MakeLike(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  namespace functionalization = at::functionalization::impl;
  bool is_functional = false, is_xla = false;
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (!functionalization::isFunctionalTensor(tensor)) continue;
    is_functional = true;
    is_xla |= tensor.is_xla();
    functionalization::sync(tensor);
    value = functionalization::from_functional_tensor(tensor);
  }
  {
    const at::AutoDispatchSkipFunctionalize guard;
    op.callBoxed(stack);
  }
  if (!is_functional) return;
  const at::Tensor result = torch::jit::pop(*stack).toTensor();
  const bool ends =
      is_xla && !result.is_xla() &&
      !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Functionalize);
  if (ends) return torch::jit::push(*stack, result);
  const at::Tensor wrapped = functionalization::to_functional_tensor(result);
  // The functional tensor shares the version counter of `result`. With a shared
  // counter, torch.ones_like does not return the tensor that a mode, such as
  // make_fx's, returned and recognizes.
  wrapped.unsafeGetTensorImpl()->set_version_counter(
      c10::VariableVersion(/*version=*/0));
  torch::jit::push(*stack, wrapped);
}

inline void RegisterFactories(torch::Library& m) {
  for (const char* const name : kFactoriesLikeTensors) {
    const std::string_view full = name;
    const size_t dot = full.find('.');
    const c10::OperatorName known(
        "aten::" + std::string(full.substr(0, dot)),
        dot == full.npos ? "" : std::string(full.substr(dot + 1)));
    if (!c10::Dispatcher::singleton().findSchema(known)) continue;
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&MakeLike>());
  }
}

// A zero tangent for a tensor that is written to. PyTorch's tangent has as many
// elements as the tensor's storage, which is empty for XLA.
inline at::Tensor NewZerosWithSameFeatureMeta(const at::Tensor& self,
                                              const at::Tensor& other,
                                              int64_t self_num_batch_dims) {
  std::vector<int64_t> sizes = self.sizes().slice(0, self_num_batch_dims).vec();
  sizes.insert(sizes.end(), other.sizes().begin(), other.sizes().end());
  return at::zeros(sizes, self.options());
}

// Upstream's kernel makes an XLA tensor, which has no strides.
inline at::Tensor NewEmptyStrided(
    const at::Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const at::Device target = device.value_or(self.device());
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  return target.is_xla() ? at::empty_symint(size, type, layout, target,
                                            pin_memory, std::nullopt)
                         : at::empty_strided_symint(size, stride, type, layout,
                                                    target, pin_memory);
}

// PyTorch's functionalization refuses lists with some tensors on the CPU.
inline void ForeachCopy_(at::TensorList self, at::TensorList src,
                         bool non_blocking) {
  TORCH_CHECK(self.size() == src.size(),
              "Tensor lists must have the same number of tensors, got ",
              self.size(), " and ", src.size());
  for (size_t i = 0; i < self.size(); ++i) self[i].copy_(src[i], non_blocking);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FACTORIES_H_
