// Views, as functionalization sees them: XLA tensors have none, so that a write
// to a view becomes a new value of the tensor that it is a view of.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_VIEWS_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_VIEWS_H_

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/operators/indexing.h"
#include "torch_xla_ext/csrc/operators/stock.h"

namespace torch_xla_ext::operators {

// `base` with its windows replaced.
inline at::Tensor WithWindows(const at::Tensor& base, const at::Tensor& windows,
                              int64_t dimension, int64_t size, int64_t step) {
  TORCH_CHECK(size <= step, "unfold: cannot write to windows of size ", size,
              " and step ", step,
              ", because they overlap: several elements of the view are one of "
              "the tensor. Please clone() the windows before writing to them.");
  if (base.dim() == 0) return at::view_copy(windows, at::IntArrayRef());
  const int64_t dim = at::maybe_wrap_dim(dimension, base.dim());
  const at::Tensor indices = WindowIndices(base.size(dim), size, step, base);
  std::vector<int64_t> shape = base.sizes().vec();
  shape[dim] = indices.size(0);
  return at::index_copy(base, dim, indices,
                        at::reshape(at::movedim(windows, -1, dim + 1), shape));
}

// The view `self.unfold(...)`. In PyTorch's own registration, a write to it
// makes 0 of the elements that are in no window: unfold_backward does not know
// them.
inline at::Tensor UnfoldAsView(const at::Tensor& self, int64_t dimension,
                               int64_t size, int64_t step) {
  namespace functionalization = at::functionalization;
  const bool is_functional = functionalization::impl::isFunctionalTensor(self);
  const bool reapply_views =
      !is_functional ||
      functionalization::impl::getFunctionalizationReapplyViewsTLS();
  const auto forward = [=](const at::Tensor& base, int64_t) {
    return reapply_views
               ? at::_ops::unfold::call(base, dimension, size, step)
               : at::_ops::unfold_copy::call(base, dimension, size, step);
  };
  const auto reverse = [=](const at::Tensor& base, const at::Tensor& windows,
                           int64_t) {
    if (base.is_xla() &&
        !base.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      return WithWindows(base, windows, dimension, size, step);
    }
    return at::unfold_backward_symint(windows, base.sym_sizes(), dimension,
                                      size, step);
  };
  const at::AutoDispatchSkipFunctionalize guard;
  if (!is_functional) return forward(self, 0);
  const at::Tensor view =
      forward(functionalization::impl::from_functional_tensor(self), 0);
  // As all XLA tensors, the view has the strides of a contiguous tensor.
  return at::detail::make_tensor<at::FunctionalTensorWrapper>(
      view, functionalization::impl::unsafeGetFunctionalWrapper(self),
      functionalization::ViewMeta(forward, reverse,
                                  /*has_symbolic_inputs=*/false));
}

}  // namespace torch_xla_ext::operators

#endif  // TORCH_XLA_EXT_CSRC_OPERATORS_VIEWS_H_
