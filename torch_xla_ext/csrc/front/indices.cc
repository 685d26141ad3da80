// Interposes on functions that take indices and refuse or mistake some of them.
//
// This works because the stock binary calls them through its PLT.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "torch_xla_ext/csrc/front/abi/torch_xla.h"
#include "torch_xla_ext/csrc/front/pass_through.h"
#include "torch_xla_ext/csrc/front/stock.h"

namespace torch_xla {

struct XLANativeFunctions {
  static at::Tensor slice_copy(const at::Tensor& self, int64_t dim,
                               std::optional<int64_t> start,
                               std::optional<int64_t> end, int64_t step);
  static at::Tensor slice_scatter(const at::Tensor& base,
                                  const at::Tensor& mutated_view, int64_t dim,
                                  std::optional<int64_t> start,
                                  std::optional<int64_t> end, int64_t step);
};

// Makes a vector of an index along one dimension, for index_select, index_copy,
// index_add and index_fill. The stock function looks at the shape of the
// index's node instead of that of its output: where a node has several, such as
// that of sort, argsort, topk or max, the process ends.
torch::lazy::Value EnsureRank1(const torch::lazy::Value& index) {
  static auto* const stock =
      Stock(&EnsureRank1, "_ZN9torch_xla11EnsureRank1ERKN5torch4lazy5ValueE");
  if (index.node->num_outputs() == 1) return stock(index);
  return stock(torch::lazy::Value(std::make_shared<PassThrough>(index), 0));
}

// A bound of a slice, which may lie before the first element: x[-512:] of fewer
// elements is x. The stock functions refuse it.
static std::optional<int64_t> Bound(const at::Tensor& self, int64_t dim,
                                    std::optional<int64_t> bound) {
  if (!bound.has_value() || self.dim() == 0) return bound;
  return std::max(*bound, -self.size(dim));
}

at::Tensor XLANativeFunctions::slice_copy(const at::Tensor& self, int64_t dim,
                                          std::optional<int64_t> start,
                                          std::optional<int64_t> end,
                                          int64_t step) {
  static auto* const stock =
      Stock(&XLANativeFunctions::slice_copy,
            "_ZN9torch_xla18XLANativeFunctions10slice_copyERKN2at6TensorElSt8op"
            "tionalIlES6_l");
  return stock(self, dim, Bound(self, dim, start), Bound(self, dim, end), step);
}

at::Tensor XLANativeFunctions::slice_scatter(
    const at::Tensor& base, const at::Tensor& mutated_view, int64_t dim,
    std::optional<int64_t> start, std::optional<int64_t> end, int64_t step) {
  static auto* const stock =
      Stock(&XLANativeFunctions::slice_scatter,
            "_ZN9torch_xla18XLANativeFunctions13slice_scatterERKN2at6TensorES4_"
            "lSt8optionalIlES6_l");
  return stock(base, mutated_view, dim, Bound(base, dim, start),
               Bound(base, dim, end), step);
}

}  // namespace torch_xla
