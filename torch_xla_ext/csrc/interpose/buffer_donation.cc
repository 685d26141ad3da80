// Interposes on XLAGraphExecutor::GetBufferDonors and SetBufferDonors: values
// that are still needed are not donated, and results are written into the
// buffers of the values that they replace (runtime_fixes/buffer_donation.h).
// Also interposes on Compile, which calls SetBufferDonors, to find programs
// that grow (runtime_fixes/unbounded_graph.h).
//
// This works because the upstream binary calls all three through its PLT.
#include "torch_xla_ext/csrc/runtime_fixes/buffer_donation.h"

#include <utility>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/unbounded_graph.h"

namespace torch_xla {

namespace {

// The program that this thread compiles.
thread_local const torch_xla_ext::LoweredProgram* lowered = nullptr;

}  // namespace

std::vector<size_t> XLAGraphExecutor::GetBufferDonors(
    const std::vector<XLATensorPtr>& tensors, const SyncTensorCollection& coll,
    const std::vector<torch::lazy::BackendDataPtr>& parameters_data) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::GetBufferDonors);
  std::vector<size_t> donors = upstream(this, tensors, coll, parameters_data);
  // Without force_ltc_data, the program is compiled for torch.compile, and does
  // not run now.
  if (donors.empty() || !coll.config.force_ltc_data) return donors;
  std::vector<XLATensorPtr> computed;
  computed.reserve(coll.indices.size());
  for (const size_t index : coll.indices) computed.push_back(tensors[index]);
  return torch_xla_ext::FreeDonors(std::move(donors), parameters_data,
                                   coll.device, computed);
}

XLAGraphExecutor::CompilationResult XLAGraphExecutor::Compile(
    std::vector<XLATensorPtr>& tensors, absl::Span<const std::string> devices,
    const SyncTensorCollection& coll, PostOrderData* po_data,
    const std::vector<torch::lazy::Value>& ir_values,
    const std::vector<size_t>& buffer_donor_indices) {
  static const auto upstream = UpstreamFunction(&XLAGraphExecutor::Compile);
  torch_xla_ext::FindGrowth(po_data->post_order);
  const torch_xla_ext::LoweredProgram program{tensors, coll.indices, ir_values,
                                              po_data->parameters_data,
                                              po_data->post_order};
  const struct Scope {
    explicit Scope(const torch_xla_ext::LoweredProgram* program) {
      lowered = program;
    }
    ~Scope() { lowered = nullptr; }
  } scope(&program);
  return upstream(this, tensors, devices, coll, po_data, ir_values,
                  buffer_donor_indices);
}

void XLAGraphExecutor::SetBufferDonors(
    LoweringContext* lowering_ctx,
    const std::vector<size_t>& buffer_donor_indexs) {
  torch_xla_ext::SetAliases(lowering_ctx, *lowered, buffer_donor_indexs);
}

}  // namespace torch_xla
