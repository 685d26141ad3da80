// The forms of operators that write to an argument or to `out=`, as PyTorch's
// own C++ functions call them after functionalization.
//
// Upstream's call upstream's kernels, not those of this folder, and convert the
// result to the dtype of the tensor that they write to: a loss whose function
// multiplies integers by a fraction in place was 0.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_WRITTEN_FORMS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_WRITTEN_FORMS_H_

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/in_place_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/out_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// Calls the operator that returns the results, and writes them.
class WrittenForm : public c10::OperatorKernel {
 public:
  explicit WrittenForm(c10::OperatorHandle function)
      : function_(std::move(function)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const torch::jit::Stack arguments = torch::jit::last(*stack, count).vec();
    const size_t inputs = function_.schema().arguments().size();
    torch::jit::Stack results(arguments.begin(), arguments.begin() + inputs);
    const bool is_out = inputs < count;
    const torch::jit::Stack written(
        arguments.begin() + (is_out ? inputs : 0),
        is_out ? arguments.end() : arguments.begin() + 1);
    function_.redispatchBoxed(keys, &results);
    for (size_t i = 0; i < written.size(); ++i) {
      Write(results[i].toTensor(), written[i].toTensor(), is_out);
    }
    torch::jit::drop(*stack, count);
    for (const c10::IValue& tensor : written) stack->push_back(tensor);
  }

 private:
  static void Write(const at::Tensor& result, const at::Tensor& to,
                    bool is_out) {
    CheckCast(result.scalar_type(), to);
    const at::Tensor converted = result.to(to.scalar_type());
    if (is_out) {
      Upstream::_copy_from_and_resize(converted, to);
    } else {
      CheckSizesOfOperand(to.sizes(), result.sizes());
      Upstream::_copy_from(converted, to, /*non_blocking=*/false);
    }
  }

  const c10::OperatorHandle function_;
};

// Whether `function` returns what `op` writes.
inline bool ReturnsWhatIsWritten(const c10::OperatorHandle& function,
                                 const c10::OperatorHandle& op) {
  const auto& inputs = function.schema().arguments();
  const auto& arguments = op.schema().arguments();
  const auto is_written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  if (inputs.size() > arguments.size() ||
      function.schema().returns().size() != op.schema().returns().size() ||
      std::any_of(inputs.begin(), inputs.end(), is_written) ||
      !std::equal(inputs.begin(), inputs.end(), arguments.begin(),
                  [](const c10::Argument& a, const c10::Argument& b) {
                    return a.name() == b.name() && *a.type() == *b.type();
                  })) {
    return false;
  }
  const auto outs = arguments.begin() + inputs.size();
  if (outs != arguments.end()) {
    return std::all_of(outs, arguments.end(), IsOut) &&
           std::none_of(arguments.begin(), outs, is_written);
  }
  return is_written(arguments[0]) &&
         std::none_of(arguments.begin() + 1, arguments.end(), is_written);
}

// Must be called before this folder's own kernels are registered.
inline void RegisterWrittenForms(torch::Library& m) {
  std::unordered_map<std::string, std::vector<c10::OperatorHandle>> functions;
  std::vector<c10::OperatorHandle> forms;
  for (const c10::OperatorHandle& op : AtenOperators()) {
    const std::string& name = op.operator_name().name;
    // What a copy writes is not computed. Other operators than those with a
    // kernel are composed of a form that writes.
    if (name.rfind("aten::_copy_from", 0) == 0 ||
        !op.hasKernelForDispatchKey(c10::DispatchKey::XLA) ||
        op.hasTag(at::Tag::nondeterministic_seeded)) {
      continue;
    }
    if (op.schema().is_mutable()) {
      forms.push_back(op);
    } else {
      functions[name].push_back(op);
    }
  }
  for (const c10::OperatorHandle& form : forms) {
    std::string base = form.operator_name().name;
    if (base.back() == '_' && !IsOut(form.schema().arguments().back())) {
      base.pop_back();
    }
    const std::vector<c10::OperatorHandle>& candidates = functions[base];
    const auto function = std::find_if(
        candidates.begin(), candidates.end(),
        [&](const auto& one) { return ReturnsWhatIsWritten(one, form); });
    if (function == candidates.end()) continue;
    m.impl(c10::toString(form.operator_name()).c_str(),
           torch::CppFunction::makeFromBoxedFunctor(
               std::make_unique<WrittenForm>(*function)));
  }
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_WRITTEN_FORMS_H_
