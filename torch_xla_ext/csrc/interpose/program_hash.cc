// Makes a program's hash cover its structure; runtime_fixes/program_hash.h says
// why.
//
// The upstream binary calls XLAGraphExecutor::RunPostOrder through its PLT in
// the two places that hash a program, for lazy tensors and for torch.compile,
// so those calls arrive here. Only these hashes read parameter_sequence.
//
// Programs that were compiled under the upstream hash have other keys, in a
// persistent cache too: every program with nodes has roots, which are added to
// the sequence.
#include "torch_xla_ext/csrc/runtime_fixes/program_hash.h"

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace torch_xla {

XLAGraphExecutor::PostOrderData XLAGraphExecutor::RunPostOrder(
    const std::vector<torch::lazy::Value>& ir_values,
    SyncTensorCollection* collection) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::RunPostOrder);
  PostOrderData data = upstream(this, ir_values, collection);
  torch_xla_ext::AppendProgram(data.post_order, ir_values,
                               &data.parameter_sequence);
  return data;
}

}  // namespace torch_xla
