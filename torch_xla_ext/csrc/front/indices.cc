// Interposes on EnsureRank1, which the operators with an index along one
// dimension (index_select, index_copy, index_add, index_fill) call for it.
// Upstream looks at the shape of the index's node instead of that of its
// output: where a node has several, such as that of sort, argsort, topk or
// max, the process aborts.
//
// This works because the stock binary calls it through its PLT.
#include <memory>

#include "torch_xla_ext/csrc/front/abi/torch_xla.h"
#include "torch_xla_ext/csrc/front/pass_through.h"
#include "torch_xla_ext/csrc/front/stock.h"

namespace torch_xla {

torch::lazy::Value EnsureRank1(const torch::lazy::Value& index) {
  static auto* const stock =
      Stock(&EnsureRank1, "_ZN9torch_xla11EnsureRank1ERKN5torch4lazy5ValueE");
  if (index.node->num_outputs() == 1) return stock(index);
  return stock(torch::lazy::Value(std::make_shared<PassThrough>(index), 0));
}

}  // namespace torch_xla
