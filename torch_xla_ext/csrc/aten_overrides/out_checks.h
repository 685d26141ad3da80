// Checks the dtype of an `out=` tensor, to which functionalization converts
// silently: `torch.add(x, y, out=integers)` of floats returns integers, and
// `torch.sort(x, out=(values, floats))` returns floats as indices.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OUT_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OUT_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"

namespace torch_xla_ext::aten_overrides {

inline bool IsOut(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr &&
         argument.alias_info()->isWrite();
}

// Whether `out` is also one of the operands, which are not resized.
inline bool IsAmong(const at::ArrayRef<c10::IValue>& inputs,
                    const at::Tensor& out) {
  return std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
    return input.isTensor() && input.toTensor().defined() &&
           input.toTensor().is_same(out);
  });
}

inline void CheckSizesOfOperand(at::IntArrayRef own, at::IntArrayRef result) {
  TORCH_CHECK(own == result, "output with shape ", own,
              " doesn't match the broadcast shape ", result);
}

// The arguments of a call as meta tensors, or nothing if they need no check,
// because `out=` is on another device, sizes are unknown, all tensors have the
// same dtype, not of integers, or `out=` is the only tensor, and so its dtype
// is the requested one.
inline std::optional<torch::jit::Stack> DescribedCall(
    const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  torch::jit::Stack described;
  std::optional<at::ScalarType> type;
  size_t outs = 0;
  bool is_to_be_checked = false, has_input = false;
  const auto describe = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    is_to_be_checked |=
        type.value_or(tensor.scalar_type()) != tensor.scalar_type();
    type = tensor.scalar_type();
    // Python's functions for meta tensors accept a number.
    const bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return is_number && tensor.is_cpu() ? tensor : Described(tensor);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    outs += IsOut(arguments[i]);
    has_input |= !IsOut(arguments[i]) &&
                 ((value.isTensor() && value.toTensor().defined()) ||
                  value.isTensorList());
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!IsToBeChecked(tensor)) return std::nullopt;
      if (IsOut(arguments[i]) && tensor.defined() && !tensor.device().is_xla())
        return std::nullopt;
      is_to_be_checked |=
          IsOut(arguments[i]) &&
          IsAmong(torch::jit::last(stack, arguments.size()).slice(0, i),
                  tensor);
      // The result of integers may be floats.
      is_to_be_checked |=
          IsOut(arguments[i]) && tensor.defined() &&
          c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
      described.emplace_back(describe(tensor));
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (!IsToBeChecked(tensor)) return std::nullopt;
        list.push_back(describe(tensor));
      }
      described.emplace_back(std::move(list));
    } else if (value.isList()) {
      // Optional tensors, such as indices, are not checked.
      if (value.toListRef().empty() || !value.toListRef()[0].isTensor()) {
        described.push_back(value);
        continue;
      }
      return std::nullopt;
    } else {
      // A given dtype is compared with that of the result.
      is_to_be_checked |= arguments[i].name() == "dtype" && !value.isNone();
      described.push_back(value);
    }
  }
  if (!has_input || (!is_to_be_checked && outs == 1)) return std::nullopt;
  return described;
}

inline std::unordered_map<c10::OperatorName, c10::KernelFunction>&
FunctionalizedOuts() {
  static auto* const kernels =
      new std::unordered_map<c10::OperatorName, c10::KernelFunction>;
  return *kernels;
}

// Operators that compute in the dtype of `out=`, unless another is given.
inline bool IsComputedInDtypeOfOut(const c10::OperatorHandle& op) {
  static const auto* const operators =
      new auto(Words("cumprod cumsum nansum prod sum"));
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  return operators->count(NameOf(op)) != 0 &&
         arguments[arguments.size() - 2].name() == "dtype";
}

// The sizes of `out=` before a call. PyTorch warns of a resized tensor,
// functionalization does not.
class OutSizes {
 public:
  OutSizes(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    const std::vector<c10::Argument>& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = stack[stack.size() - arguments.size() + i];
      if (IsOut(arguments[i]) && value.isTensor() &&
          IsChecked(value.toTensor())) {
        sizes_.emplace_back(value.toTensor(), value.toTensor().sizes().vec());
      }
    }
  }

  void WarnOfChanges() const {
    for (const auto& [out, before] : sizes_) {
      if (out.sizes() == before) continue;
      at::native::resize_output_check(
          at::detail::empty_meta(before, out.scalar_type()), out.sizes());
    }
  }

 private:
  std::vector<std::pair<at::Tensor, std::vector<int64_t>>> sizes_;
};

// Functionalization of an operator that writes to `out=`, after PyTorch's
// function for meta tensors has checked the call.
inline void CheckOut(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  if (IsComputedInDtypeOfOut(op)) {
    c10::IValue& dtype = torch::jit::peek(*stack, 0, 2);
    const at::Tensor& out = torch::jit::peek(*stack, 0, 1).toTensor();
    if (dtype.isNone() && out.defined()) dtype = out.scalar_type();
  }
  if (auto described = DescribedCall(op, *stack)) {
    const size_t count = described->size();
    const auto arguments = torch::jit::last(*stack, count);
    torch::jit::Stack operands;  // that are `out=`, too
    for (size_t i = 0; i < count; ++i) {
      if (!IsOut(op.schema().arguments()[i])) continue;
      if (IsAmong(arguments.slice(0, i), arguments[i].toTensor())) {
        operands.push_back((*described)[i]);
        operands.push_back(arguments[i]);
      }
    }
    const OutsideOfModes guard;
    const c10::WarningUtils::WarningHandlerGuard no_warnings(nullptr);
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta),
                         &*described);
    } catch (const c10::NotImplementedError&) {
      // Not known for meta tensors.
    }
    for (size_t i = 0; i < operands.size(); i += 2) {
      CheckSizesOfOperand(operands[i + 1].toTensor().sizes(),
                          operands[i].toTensor().sizes());
    }
  }
  const OutSizes sizes(op, *stack);
  FunctionalizedOuts().at(op.operator_name()).callBoxed(op, keys, stack);
  sizes.WarnOfChanges();
}

// Whether an operator with `out=` also writes to an operand, such as a running
// mean. PyTorch's functionalization exchanges the two.
inline bool WritesToOperand(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const auto& one) {
    return !IsOut(one) && one.alias_info() != nullptr &&
           one.alias_info()->isWrite();
  });
}

// Operators whose `out=` must have the dtype of the result. PyTorch's meta
// functions accept any dtype to which the result can be cast.
inline bool IsOfResultDtype(const c10::OperatorHandle& op) {
  static const auto* const operators = new auto(
      Words("_fft_c2c _fft_r2c _linalg_eigh _linalg_slogdet _linalg_solve_ex "
            "all amax amin aminmax any argmax argmin avg_pool3d bucketize "
            "complex cummax cummin frexp gelu hardshrink heaviside histc "
            "histogram index_add index_copy index_reduce index_select isin "
            "isneginf isposinf kthvalue lerp linalg_cross linalg_ldl_factor_ex "
            "linalg_ldl_solve linalg_lu linalg_lu_factor_ex linalg_lu_solve "
            "linalg_qr linalg_solve_triangular linear log_sigmoid log_softmax "
            "logcumsumexp lu_unpack masked_select median mode multinomial "
            "nan_to_num nanmedian narrow_copy neg nonzero ormqr polar renorm "
            "round scatter_reduce searchsorted signbit softmax softplus "
            "softshrink sort take topk tril triu where"));
  return op.hasTag(at::Tag::generated) || WritesToOperand(op) ||
         operators->count(NameOf(op)) != 0;
}

// The operator that returns what `op` writes to `out=`.
inline std::optional<c10::OperatorHandle> FunctionOf(
    const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  for (const c10::OperatorHandle& other : AtenOperators()) {
    if (other.operator_name().name != op.operator_name().name) continue;
    const std::vector<c10::Argument>& others = other.schema().arguments();
    const auto is_same = [](const c10::Argument& a, const c10::Argument& b) {
      return a.name() == b.name() && *a.type() == *b.type() &&
             (a.alias_info() == nullptr) == (b.alias_info() == nullptr);
    };
    if (others.size() < arguments.size() &&
        std::equal(others.begin(), others.end(), arguments.begin(), is_same) &&
        std::all_of(arguments.begin() + others.size(), arguments.end(),
                    IsOut)) {
      return other;
    }
  }
  return std::nullopt;
}

struct Function {
  c10::OperatorHandle op;
  bool is_of_result_dtype;
};

inline const std::optional<Function>& FunctionFor(
    const c10::OperatorHandle& op) {
  static auto* const functions =
      new std::unordered_map<c10::OperatorName, std::optional<Function>>;
  static auto* const mutex = new std::mutex;
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto [found, is_new] = functions->try_emplace(op.operator_name());
  if (is_new) {
    if (const auto function = FunctionOf(op)) {
      found->second = Function{*function, IsOfResultDtype(op)};
    }
  }
  return found->second;
}

// Calls the operator that returns the results that a call would write to
// `out=`, and returns these after a check of their dtypes.
inline torch::jit::Stack CheckedResults(const Function& function,
                                        const at::ArrayRef<c10::IValue>& inputs,
                                        const at::ArrayRef<c10::IValue>& outs) {
  torch::jit::Stack results = inputs.vec();
  function.op.callBoxed(&results);
  TORCH_INTERNAL_ASSERT(results.size() == outs.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& result = results[i].toTensor();
    const at::Tensor& out = outs[i].toTensor();
    TORCH_CHECK(!function.is_of_result_dtype || result.dtype() == out.dtype(),
                "Expected out tensor to have dtype ", result.dtype(),
                ", but got ", out.dtype(), " instead");
    TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()),
                "result type ", result.scalar_type(),
                " can't be cast to the desired output type ",
                out.scalar_type());
    if (IsAmong(inputs, out) && IsToBeChecked(result)) {
      CheckSizesOfOperand(out.sizes(), result.sizes());
    }
  }
  return results;
}

inline void Write(const torch::jit::Stack& results,
                  const torch::jit::Stack& outs, torch::jit::Stack* stack) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& out = outs[i].toTensor();
    const at::Tensor& result = results[i].toTensor();
    at::native::resize_output(out, result.sizes());
    out.copy_(result);
    stack->push_back(outs[i]);
  }
}

// Functionalization of an operator that writes to `out=`, after a check of the
// results that it would write.
inline void WriteCheckedResults(const c10::OperatorHandle& op,
                                c10::DispatchKeySet keys,
                                torch::jit::Stack* stack) {
  const std::optional<Function>& function = FunctionFor(op);
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  const auto is_xla = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() &&
           value.toTensor().is_xla() &&
           at::functionalization::impl::isFunctionalTensor(value.toTensor());
  };
  if (function) {
    const size_t num_inputs = function->op.schema().arguments().size();
    const auto inputs = arguments.slice(0, num_inputs);
    const auto outs = arguments.slice(num_inputs);
    if (std::all_of(outs.begin(), outs.end(), is_xla)) {
      const torch::jit::Stack results = CheckedResults(*function, inputs, outs);
      if (std::all_of(results.begin(), results.end(), [](const auto& result) {
            return IsToBeChecked(result.toTensor());
          })) {
        const torch::jit::Stack written = outs.vec();
        torch::jit::drop(*stack, count);
        Write(results, written, stack);
        return;
      }
    }
  }
  FunctionalizedOuts().at(op.operator_name()).callBoxed(op, keys, stack);
}

// Replaces a composition that writes to `out=`.
inline void WriteResults(const c10::OperatorHandle& op,
                         torch::jit::Stack* stack) {
  const std::optional<Function>& function = FunctionFor(op);
  TORCH_INTERNAL_ASSERT(function);
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  const size_t num_inputs = function->op.schema().arguments().size();
  const torch::jit::Stack outs = arguments.slice(num_inputs).vec();
  const torch::jit::Stack results =
      CheckedResults(*function, arguments.slice(0, num_inputs), outs);
  torch::jit::drop(*stack, count);
  Write(results, outs, stack);
}

inline void RegisterOutCompositions(torch::Library& m) {
  const auto write = torch::CppFunction::makeFromBoxedFunction<&WriteResults>;
  // PyTorch's composition does not return `out` itself if `out` is functional.
  m.impl("linalg_matrix_rank.atol_rtol_float_out", write());
  m.impl("linalg_matrix_rank.atol_rtol_tensor_out", write());
  m.impl("linalg_matrix_rank.out", write());
  m.impl("linalg_matrix_rank.out_tol_tensor", write());
  // PyTorch's composition calls a CPU kernel.
  m.impl("nanmean.out", write());
}

inline void RegisterOutChecks(torch::Library& m) {
  for (const c10::OperatorHandle& op : AtenOperators()) {
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::Functionalize)) continue;
    const std::vector<c10::Argument>& arguments = op.schema().arguments();
    if (arguments.empty() || !IsOut(arguments.back())) continue;
    const std::string_view name = NameOf(op);
    // This operator draws numbers of the dtype of `out=`.
    if (name == "bernoulli") continue;
    FunctionalizedOuts().emplace(op.operator_name(),
                                 KernelOf(op, c10::DispatchKey::Functionalize));
    const bool is_by_meta =
        !IsOfResultDtype(op) && name != "angle" && name != "conj_physical" &&
        name != "linalg_eigvals" && !op.hasTag(at::Tag::dynamic_output_shape) &&
        op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
    m.impl(c10::toString(op.operator_name()).c_str(),
           is_by_meta ? torch::CppFunction::makeFromBoxedFunction<&CheckOut>()
                      : torch::CppFunction::makeFromBoxedFunction<
                            &WriteCheckedResults>());
  }
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OUT_CHECKS_H_
