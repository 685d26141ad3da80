// Gradients of views that change their shape in place, such as v.transpose_().
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_VIEWS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_VIEWS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

namespace torch_xla_ext::aten_overrides {

// Returns how the result of the operator without "_" is a view of its base, if
// the first argument is a view that autograd makes again after each write.
inline std::optional<torch::autograd::ViewInfo> ViewAfter(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  namespace impl = torch::autograd::impl;
  const auto* const before =
      impl::get_view_autograd_meta(arguments[0].toTensor());
  if (before == nullptr || !before->has_bw_view() ||
      !before->get_backward_view().has_view_fn()) {
    return std::nullopt;
  }
  std::string name = op.operator_name().name;
  name.pop_back();
  const std::string overload =
      name == "aten::transpose" ? "int" : op.operator_name().overload_name;
  torch::jit::Stack stack = arguments;
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(name.c_str(), overload.c_str())
      .callBoxed(&stack);
  const auto* const after = impl::get_view_autograd_meta(stack[0].toTensor());
  if (after == nullptr || !after->has_bw_view() ||
      !after->get_backward_view().has_view_fn()) {
    return std::nullopt;
  }
  const torch::autograd::ViewInfo& view = after->get_backward_view();
  return torch::autograd::ViewInfo(view.base_, view.view_fn().clone_and_set(),
                                   view.rev_view_fn());
}

// A boxed kernel of such an operator. PyTorch's kernel keeps the function that
// makes the view again, which knows nothing of the new shape: it is right only
// for tensors with strides.
inline void ViewInPlace(const c10::OperatorHandle& op, c10::DispatchKeySet,
                        torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::optional<torch::autograd::ViewInfo> view = ViewAfter(
      op, std::vector<c10::IValue>(stack->end() - count, stack->end()));
  c10::Dispatcher::singleton().callBoxedForDispatchKey(
      op, c10::DispatchKey::Autograd, stack);
  if (!view.has_value()) return;
  const auto* const meta =
      torch::autograd::impl::get_view_autograd_meta(stack->back().toTensor());
  const_cast<torch::autograd::ViewInfo&>(meta->get_backward_view()) =
      *std::move(view);
}

inline void RegisterInPlaceViews(torch::Library& m) {
  for (const char* const name :
       {"as_strided_", "squeeze_", "squeeze_.dim", "squeeze_.dims", "t_",
        "transpose_", "unsqueeze_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&ViewInPlace>());
  }
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_VIEWS_H_
