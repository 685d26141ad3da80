// Interposes on XLAGraphExecutor::SetBufferDonors, which Compile calls: results
// are written to where the values were that they replace
// (runtime/buffer_donation.h).
//
// This works because the stock binary calls both through its PLT.
#include "torch_xla_ext/csrc/runtime/buffer_donation.h"

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/stock.h"

namespace torch_xla {

namespace {

// What this thread compiles.
thread_local const torch_xla_ext::LoweredProgram* lowered = nullptr;

}  // namespace

XLAGraphExecutor::CompilationResult XLAGraphExecutor::Compile(
    std::vector<XLATensorPtr>& tensors, absl::Span<const std::string> devices,
    const SyncTensorCollection& coll, PostOrderData* po_data,
    const std::vector<torch::lazy::Value>& ir_values,
    const std::vector<size_t>& buffer_donor_indices) {
  using Function = CompilationResult(
      XLAGraphExecutor*, std::vector<XLATensorPtr>&,
      absl::Span<const std::string>, const SyncTensorCollection&,
      PostOrderData*, const std::vector<torch::lazy::Value>&,
      const std::vector<size_t>&);
  static Function* const stock = Stock(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor7CompileERSt6vectorIN3c1013intrusive_"
      "ptrINS_9XLATensorENS2_6detail34intrusive_target_default_null_typeIS4"
      "_EEEESaIS8_EEN4absl12lts_202308024SpanIKNSt7__cxx1112basic_stringIcS"
      "t11char_traitsIcESaIcEEEEERKN5torch4lazy17LazyGraphExecutor20SyncTen"
      "sorCollectionEPNSP_13PostOrderDataERKS1_INSO_5ValueESaISV_EERKS1_ImS"
      "aImEE");
  const torch_xla_ext::LoweredProgram program{tensors, coll.indices, ir_values,
                                              po_data->parameters_data,
                                              po_data->post_order};
  const struct Scope {
    explicit Scope(const torch_xla_ext::LoweredProgram* program) {
      lowered = program;
    }
    ~Scope() { lowered = nullptr; }
  } scope(&program);
  return stock(this, tensors, devices, coll, po_data, ir_values,
               buffer_donor_indices);
}

void XLAGraphExecutor::SetBufferDonors(
    LoweringContext* lowering_ctx,
    const std::vector<size_t>& buffer_donor_indexs) {
  torch_xla_ext::SetAliases(lowering_ctx, *lowered, buffer_donor_indexs);
}

}  // namespace torch_xla
