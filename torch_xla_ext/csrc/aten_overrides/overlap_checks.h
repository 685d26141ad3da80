// Writes to memory that several elements share, which PyTorch refuses.
//
// Functionalization has no memory: `x.expand(2, 3).add_(1)` added 1 where
// PyTorch raises an error, and `x[1:].add_(x[:-1])` gave numbers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERLAP_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERLAP_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/strides.h"
#include "torch_xla_ext/csrc/aten_overrides/views.h"

namespace torch_xla_ext::aten_overrides {

template <auto kMember>
struct MemberOfWrapper {
  friend const std::vector<at::functionalization::ViewMeta>& ViewMetasOf(
      const at::FunctionalTensorWrapper& wrapper) {
    return wrapper.*kMember;
  }
};
const std::vector<at::functionalization::ViewMeta>& ViewMetasOf(
    const at::FunctionalTensorWrapper& wrapper);
template struct MemberOfWrapper<&at::FunctionalTensorWrapper::view_metas_>;

// The operators that write the same to each copy of an element.
inline bool IsIdempotent(std::string_view name) {
  static const auto* const names = new auto(
      Words("fill _foreach_zero index_fill masked_fill tril threshold triu "
            "zero"));
  return names->count(name) != 0;
}

// The operators whose operands must not share memory with what they write to,
// not even all of it. `is_self_excepted`: the first operand may.
struct Rule {
  bool is_partial_refused, is_any_refused, is_self_excepted;
};
inline Rule RuleOf(const c10::OperatorHandle& op, std::string_view name) {
  static const auto* const of_all =
      new auto(Words("cat gather index_select linalg_cross take"));
  static const auto* const of_others = new auto(
      Words("_index_put_impl index_add index_copy index_put index_reduce put "
            "scatter scatter_add scatter_reduce"));
  // As elementwise operators, but without their tag in PyTorch.
  static const auto* const partial = new auto(
      Words("addbmm addmv addr bernoulli copy copysign cumprod cumsum elu eq "
            "floor_divide gcd ge gelu gt hardshrink hardsigmoid hardswish "
            "heaviside huber_loss lcm le leaky_relu logcumsumexp lt mish "
            "mse_loss ne normal renorm smooth_l1_loss softplus softshrink "
            "threshold where xlogy"));
  const bool of_first = of_all->count(name) != 0;
  const bool any = of_first || of_others->count(name) != 0;
  const bool is_list = name.rfind("_foreach_", 0) == 0;
  return {any || is_list || op.hasTag(at::Tag::pointwise) ||
              partial->count(name) != 0,
          any, !of_first};
}

inline bool MayOverlap(const at::Tensor& tensor) {
  const auto& metas = ViewMetasOf(
      *at::functionalization::impl::unsafeGetFunctionalWrapper(tensor));
  return std::any_of(metas.begin(), metas.end(), [](const auto& meta) {
    return meta.forward_fn.template target<OverlappingView>() != nullptr;
  });
}

inline void CheckElements(const at::Tensor& written) {
  if (!MayOverlap(written)) return;
  const OutsideOfModes guard;
  const std::optional<at::Tensor> strided = WithStrides(written);
  TORCH_CHECK(
      !strided || !Overlaps(strided->sizes(), strided->strides()),
      "unsupported operation: more than one element of the written-to tensor "
      "refers to a single memory location. Please clone() the tensor before "
      "performing the operation.");
}

inline void CheckOperand(const at::Tensor& written, const at::Tensor& operand,
                         bool is_any_refused) {
  if (!operand.defined() || FunctionalStorageOf(operand) == nullptr ||
      FunctionalStorageOf(operand) != FunctionalStorageOf(written) ||
      (!is_any_refused && operand.is_same(written)) || !IsChecked(operand)) {
    return;
  }
  const OutsideOfModes guard;
  const std::optional<at::Tensor> base = BaseWithStrides(written);
  if (!base) return;
  const std::optional<at::Tensor> to = ViewWithStrides(written, *base);
  const std::optional<at::Tensor> from = ViewWithStrides(operand, *base);
  if (!to || !from) return;
  if (is_any_refused) {
    at::assert_no_overlap(*to, *from);
  } else {
    at::assert_no_partial_overlap(*to, *from);
  }
}

// Checks of an operator that writes to arguments, before its kernel for
// functionalization.
class CheckedWrite : public c10::OperatorKernel {
 public:
  CheckedWrite(const c10::OperatorHandle& op, std::string_view name,
               c10::KernelFunction kernel)
      : is_idempotent_(IsIdempotent(name)),
        is_assignment_(name == "index_put" || name == "_index_put_impl"),
        rule_(RuleOf(op, name)),
        written_(Written(op)),
        kernel_(std::move(kernel)) {}

  static std::vector<size_t> Written(const c10::OperatorHandle& op) {
    std::vector<size_t> written;
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* const alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite()) written.push_back(i);
    }
    return written;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto arguments =
        torch::jit::last(*stack, op.schema().arguments().size());
    for (const size_t i : written_) Check(arguments, i);
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  using Arguments = at::ArrayRef<c10::IValue>;

  void Check(const Arguments& arguments, size_t i) const {
    if (arguments[i].isTensor()) {
      CheckTensor(arguments, i, arguments[i].toTensor(), /*place=*/{});
    } else if (arguments[i].isTensorList()) {
      const auto list = arguments[i].toListRef();
      for (size_t k = 0; k < list.size(); ++k) {
        CheckTensor(arguments, i, list[k].toTensor(), k);
      }
    }
  }

  // `place`: of the tensor in a list, which is written with the tensors at this
  // place of other lists.
  void CheckTensor(const Arguments& arguments, size_t i,
                   const at::Tensor& written,
                   std::optional<size_t> place) const {
    if (!IsChecked(written)) return;
    if (!WritesTheSame(arguments)) CheckElements(written);
    if (!rule_.is_partial_refused || FillsMask(arguments)) return;
    for (size_t j = 0; j < arguments.size(); ++j) {
      if (std::count(written_.begin(), written_.end(), j) != 0) continue;
      const bool is_any_refused =
          rule_.is_any_refused && !(j == 0 && rule_.is_self_excepted);
      if (arguments[j].isTensor()) {
        CheckOperand(written, arguments[j].toTensor(), is_any_refused);
      } else if (arguments[j].isList()) {
        const auto list = arguments[j].toListRef();
        for (size_t k = 0; k < list.size(); ++k) {
          if (!list[k].isTensor() || (place && k != *place)) continue;
          CheckOperand(written, list[k].toTensor(), is_any_refused);
        }
      }
    }
  }

  bool WritesTheSame(const Arguments& arguments) const {
    if (!is_assignment_) return is_idempotent_;
    return arguments[2].toTensor().sym_numel() == 1 && !arguments[3].toBool();
  }

  // Whether an assignment is `x[mask] = number`, which PyTorch reads before.
  bool FillsMask(const Arguments& arguments) const {
    if (!is_assignment_ || !WritesTheSame(arguments)) return false;
    const auto indices = arguments[1].toListRef();
    return std::all_of(indices.begin(), indices.end(), [](const auto& index) {
      return !index.isTensor() || index.toTensor().scalar_type() == at::kBool ||
             index.toTensor().scalar_type() == at::kByte;
    });
  }

  const bool is_idempotent_, is_assignment_;
  const Rule rule_;
  const std::vector<size_t> written_;
  const c10::KernelFunction kernel_;
};

inline void RegisterOverlapChecks(torch::Library& m) {
  for (const c10::OperatorHandle& op : AtenOperators()) {
    std::string_view name = NameOf(op);
    // A change of the view itself writes no elements.
    if (op.hasTag(at::Tag::inplace_view) || name == "_resize_output_" ||
        !op.hasKernelForDispatchKey(c10::DispatchKey::Functionalize) ||
        CheckedWrite::Written(op).empty()) {
      continue;
    }
    if (name.back() == '_') name.remove_suffix(1);
    m.impl(
        c10::toString(op.operator_name()).c_str(),
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CheckedWrite>(
            op, name, KernelOf(op, c10::DispatchKey::Functionalize))));
  }
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_OVERLAP_CHECKS_H_
