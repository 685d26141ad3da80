// The dtype of an `out=` tensor, which functionalization converts to without a
// word: `torch.add(x, y, out=integers)` of floats gave integers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OUT_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OUT_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"

namespace torch_xla_ext::aten_overrides {

inline bool IsOut(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr &&
         argument.alias_info()->isWrite();
}

// The arguments of a call as meta tensors, or nothing if they need no check:
// sizes are not known, or all tensors have one dtype.
inline std::optional<torch::jit::Stack> DescribedCall(
    const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  torch::jit::Stack described;
  std::optional<at::ScalarType> type;
  size_t outs = 0;
  bool is_to_be_checked = false;
  const auto describe = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    is_to_be_checked |=
        type.value_or(tensor.scalar_type()) != tensor.scalar_type();
    type = tensor.scalar_type();
    // Python's functions for meta tensors take a number as it is.
    const bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return is_number && tensor.is_cpu() ? tensor : Described(tensor);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    outs += IsOut(arguments[i]);
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!IsToBeChecked(tensor)) return std::nullopt;
      described.emplace_back(describe(tensor));
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (!IsToBeChecked(tensor)) return std::nullopt;
        list.push_back(describe(tensor));
      }
      described.emplace_back(std::move(list));
    } else if (value.isList()) {
      // Optional tensors, such as indices: not looked into.
      if (value.toListRef().empty() || !value.toListRef()[0].isTensor()) {
        described.push_back(value);
        continue;
      }
      return std::nullopt;
    } else {
      // A dtype that is given is one to compare the result's with.
      is_to_be_checked |= arguments[i].name() == "dtype" && !value.isNone();
      described.push_back(value);
    }
  }
  if (!is_to_be_checked && outs == 1) return std::nullopt;
  return described;
}

inline std::unordered_map<c10::OperatorName, c10::KernelFunction>&
FunctionalizedOuts() {
  static auto* const kernels =
      new std::unordered_map<c10::OperatorName, c10::KernelFunction>;
  return *kernels;
}

// Functionalization of an operator that writes to `out=`, after PyTorch's
// function for meta tensors has checked the call.
inline void CheckOut(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  if (auto described = DescribedCall(op, *stack)) {
    const at::AutoDispatchSkipFunctionalize guard;
    const c10::WarningUtils::WarningHandlerGuard no_warnings(nullptr);
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta),
                         &*described);
    } catch (const c10::NotImplementedError&) {
      // Of meta tensors it is not known.
    }
  }
  FunctionalizedOuts().at(op.operator_name()).callBoxed(op, keys, stack);
}

inline void RegisterOutChecks(torch::Library& m) {
  constexpr std::string_view kNamespace = "aten::";
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind(kNamespace, 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || op->hasTag(at::Tag::generated) ||
        op->hasTag(at::Tag::dynamic_output_shape) ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::Functionalize) ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
      continue;
    }
    const std::vector<c10::Argument>& arguments = op->schema().arguments();
    if (arguments.empty() || !IsOut(arguments.back())) continue;
    FunctionalizedOuts().emplace(
        name, KernelOf(*op, c10::DispatchKey::Functionalize));
    const std::string full =
        name.name.substr(kNamespace.size()) +
        (name.overload_name.empty() ? "" : "." + name.overload_name);
    m.impl(full.c_str(),
           torch::CppFunction::makeFromBoxedFunction<&CheckOut>());
  }
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OUT_CHECKS_H_
