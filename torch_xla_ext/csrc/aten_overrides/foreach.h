// torch._foreach_… of lists with some tensors on the CPU.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FOREACH_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FOREACH_H_

#include <ATen/ATen.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstddef>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/in_place_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The kernel for functionalization. PyTorch's treats all tensors of a list as
// XLA tensors if one of them is, and crashes or returns tensors without memory.
// For such lists, each tensor is computed by a separate call.
class ForeachOfMixedLists : public c10::OperatorKernel {
 public:
  explicit ForeachOfMixedLists(c10::KernelFunction upstream)
      : upstream_(std::move(upstream)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    if (HasTensorOfScalars(op)) return CallWithScalars(op, stack);
    const std::vector<c10::IValue> arguments =
        torch::jit::last(*stack, op.schema().arguments().size()).vec();
    CheckResults(op, arguments);
    if (!IsMixed(arguments)) return upstream_.callBoxed(op, keys, stack);
    torch::jit::drop(*stack, arguments.size());
    const size_t count = arguments[0].toListRef().size();
    std::vector<std::vector<at::Tensor>> results;
    for (size_t i = 0; i < count; ++i) {
      torch::jit::Stack one = At(op, arguments, i);
      op.callBoxed(&one);
      results.resize(one.size());
      for (size_t k = 0; k < one.size(); ++k) {
        results[k].push_back(one[k].toTensorVector().at(0));
      }
    }
    for (std::vector<at::Tensor>& list : results) {
      torch::jit::push(*stack, std::move(list));
    }
  }

 private:
  // Refuses numbers with which the results are of another type than the XLA
  // tensors that they are written to. PyTorch's kernel would convert them.
  static void CheckResults(const c10::OperatorHandle& op,
                           const std::vector<c10::IValue>& arguments) {
    static const auto* const kConverting = new std::unordered_set(
        Words("_foreach_add_ _foreach_div_ _foreach_mul_ _foreach_sub_"));
    const bool is_of_each =
        arguments.size() == 2 && arguments[1].isList() && IsOfEach(op, 1);
    if (arguments.size() != 2 || !(arguments[1].isScalar() || is_of_each) ||
        kConverting->count(NameOf(op)) == 0) {
      return;
    }
    const auto tensors = arguments[0].toListRef();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i].toTensor();
      if (is_of_each && i >= arguments[1].toListRef().size()) return;
      const at::Scalar number =
          (is_of_each ? arguments[1].toListRef()[i] : arguments[1]).toScalar();
      const at::ScalarType type = at::result_type(tensor, number);
      CheckCast(NameOf(op) == "_foreach_div_" ? FloatOf(type) : type, tensor);
    }
  }

  // A tensor on the CPU, and not a number for all tensors.
  static bool IsOnCpu(const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cpu() &&
           !at::functionalization::impl::isFunctionalTensor(tensor);
  }

  static bool IsMixed(const std::vector<c10::IValue>& arguments) {
    bool has_xla = false, has_cpu = false;
    for (const c10::IValue& argument : arguments) {
      if (!argument.isTensorList()) continue;
      for (const c10::IValue& value : argument.toListRef()) {
        const at::Tensor& tensor = value.toTensor();
        has_xla |= tensor.defined() && tensor.is_xla();
        has_cpu |= IsOnCpu(tensor);
      }
    }
    return has_xla && has_cpu;
  }

  // The arguments of the call for the tensors at `i` of the lists. As in
  // operators of two tensors, those on the CPU are copied to XLA's device,
  // except in place: there they are copied to the tensor that is written to.
  static torch::jit::Stack At(const c10::OperatorHandle& op,
                              const std::vector<c10::IValue>& arguments,
                              size_t i) {
    std::optional<at::Device> target;
    for (const c10::IValue& argument : arguments) {
      if (!argument.isTensorList()) continue;
      const auto list = argument.toListRef();
      TORCH_CHECK(i < list.size(), op.schema().name(),
                  ": Tensor lists must have the same number of tensors, got ",
                  arguments[0].toListRef().size(), " and ", list.size());
      const at::Device device = list[i].toTensor().device();
      if (!target || (device.is_xla() && !op.schema().is_mutable())) {
        target = device;
      }
    }
    torch::jit::Stack one;
    for (const c10::IValue& argument : arguments) {
      if (argument.isTensorList()) {
        const at::Tensor& tensor = argument.toListRef()[i].toTensor();
        one.emplace_back(std::vector<at::Tensor>{
            target->is_cpu() ? tensor.cpu() : Copied(tensor, *target)});
      } else if (argument.isList() && IsOfEach(op, one.size())) {
        c10::List<c10::IValue> list(argument.toList().elementType());
        list.push_back(argument.toListRef()[i]);
        one.emplace_back(c10::impl::toTypedList<at::Scalar>(std::move(list)));
      } else {
        one.push_back(argument);
      }
    }
    return one;
  }

  static at::Tensor Copied(const at::Tensor& tensor, at::Device device) {
    return IsOnCpu(tensor) ? OnDevice(tensor, device).to(device) : tensor;
  }

  // Whether an argument has a number for each tensor.
  static bool IsOfEach(const c10::OperatorHandle& op, size_t argument) {
    return op.schema().arguments()[argument].name() == "scalars";
  }

  // Whether a tensor on the CPU has the numbers. PyTorch's kernel calls the one
  // for meta tensors with a meta tensor of them.
  static bool HasTensorOfScalars(const c10::OperatorHandle& op) {
    const auto& last = op.schema().arguments().back();
    return last.name() == "scalars" &&
           last.type()->isSubtypeOf(*c10::TensorType::get());
  }

  static void CallWithScalars(const c10::OperatorHandle& op,
                              torch::jit::Stack* stack) {
    const at::Tensor tensor = torch::jit::pop(*stack).toTensor();
    TORCH_CHECK(tensor.device().is_cpu(), "Expected scalars to be on CPU, got ",
                tensor.device(), " instead.");
    TORCH_CHECK(tensor.dim() == 1,
                "Expected packed scalar Tensor to be of dimension 1. Got ",
                tensor.dim(), " instead.");
    const at::Tensor numbers =
        at::functionalization::impl::isFunctionalTensor(tensor)
            ? at::functionalization::impl::from_functional_tensor(tensor)
            : tensor;
    c10::List<at::Scalar> scalars;
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      scalars.push_back(numbers[i].item());
    }
    torch::jit::push(*stack, std::move(scalars));
    c10::Dispatcher::singleton()
        .findSchemaOrThrow(op.schema().name().c_str(), "ScalarList")
        .callBoxed(stack);
  }

  const c10::KernelFunction upstream_;
};

inline void RegisterForeach(torch::Library& m) {
  for (const c10::OperatorHandle& op : AtenOperators()) {
    if (op.operator_name().name.rfind("aten::_foreach_", 0) != 0) continue;
    const auto& arguments = op.schema().arguments();
    const auto& list = *c10::ListType::ofTensors();
    const bool is_out = !arguments.empty() && arguments.back().is_out();
    if (is_out || arguments.empty() || !arguments[0].type()->isSubtypeOf(list))
      continue;
    m.impl(c10::toString(op.operator_name()).c_str(),
           torch::CppFunction::makeFromBoxedFunctor(
               std::make_unique<ForeachOfMixedLists>(
                   KernelOf(op, c10::DispatchKey::Functionalize))));
  }
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FOREACH_H_
