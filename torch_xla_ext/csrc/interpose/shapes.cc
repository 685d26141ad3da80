// Interposes on two functions that crash the process: one looks at the wrong
// shape, the other divides by a size of 0.
//
// This works because the upstream binary calls both through its PLT.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/pass_through.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace torch_xla {

// Makes an index for one dimension a vector, for index_select, index_copy,
// index_add and index_fill. The upstream function looks at the shape of the
// index's node instead of that of its output: for a node with several outputs,
// such as sort, argsort, topk and max, it crashes.
torch::lazy::Value EnsureRank1(const torch::lazy::Value& index) {
  static const auto upstream = UpstreamFunction(&EnsureRank1);
  if (index.node->num_outputs() == 1) return upstream(index);
  return upstream(torch::lazy::Value(std::make_shared<PassThrough>(index), 0));
}

// Whether an adaptive pool is lowered. The upstream function divides by the
// sizes of the output, which may be 0.
bool IsSupportedAdaptivePool(absl::Span<const int64_t> input_size,
                             absl::Span<const int64_t> output_size,
                             int pool_dim) {
  static const auto upstream = UpstreamFunction(&IsSupportedAdaptivePool);
  const bool has_elements = std::all_of(output_size.begin(), output_size.end(),
                                        [](int64_t size) { return size > 0; });
  return has_elements && upstream(input_size, output_size, pool_dim);
}

}  // namespace torch_xla
