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

#include <dlfcn.h>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"

namespace torch_xla {

XLAGraphExecutor::PostOrderData XLAGraphExecutor::RunPostOrder(
    const std::vector<torch::lazy::Value>& ir_values,
    SyncTensorCollection* collection) {
  using Upstream = PostOrderData (*)(XLAGraphExecutor*,
                                     const std::vector<torch::lazy::Value>&,
                                     SyncTensorCollection*);
  static const auto upstream = reinterpret_cast<Upstream>(dlsym(
      RTLD_NEXT,
      "_ZN9torch_xla16XLAGraphExecutor12RunPostOrderERKSt6vectorIN5torch4lazy5V"
      "alueESaIS4_EEPNS3_17LazyGraphExecutor20SyncTensorCollectionE"));
  PostOrderData data = upstream(this, ir_values, collection);
  torch_xla_ext::AppendProgram(data.post_order, ir_values,
                               &data.parameter_sequence);
  return data;
}

}  // namespace torch_xla
