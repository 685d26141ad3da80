// Interposes on the functions that collect tensors for a program, and on those
// that read or replace a tensor's operations or sizes: several threads may do
// both, tensors keep their operations until they have data
// (runtime_fixes/tensor_lock.h), and other threads leave the tensors of a trace
// alone (runtime_fixes/thread_trace.h). Also interposes on a function that
// reads tensors' data while it holds a device's lock.
//
// This works because the upstream binary calls all of them through its PLT, and
// numel_custom through a vtable, which refers to it by its symbol. The upstream
// functions are called from here.
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"

#include <memory>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/thread_trace.h"

#define SET_UP_SIZES "_ZN9torch_xla13XLATensorImpl19SetupSizePropertiesEv"
#define NUM_ELEMENTS "_ZNK9torch_xla13XLATensorImpl12numel_customEv"

namespace torch_xla {

using torch::lazy::BackendDataPtr;
using torch_xla_ext::TensorLock;

std::shared_ptr<XLAGraphExecutor::Async>
XLAGraphExecutor::SyncTensorsGraphInternal(
    std::vector<XLATensorPtr>* tensors, absl::Span<const std::string> devices,
    const SyncTensorsConfig& config, bool warm_up_cache_only) {
  using Function = std::shared_ptr<Async>(
      XLAGraphExecutor*, std::vector<XLATensorPtr>*,
      absl::Span<const std::string>, const SyncTensorsConfig&, bool);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor24SyncTensorsGraphInternalEPSt6vectorIN3"
      "c1013intrusive_ptrINS_9XLATensorENS2_6detail34intrusive_target_default_"
      "null_typeIS4_EEEESaIS8_EEN4absl12lts_202308024SpanIKNSt7__cxx1112basic_"
      "stringIcSt11char_traitsIcESaIcEEEEERKN5torch4lazy17LazyGraphExecutor17"
      "SyncTensorsConfigEb");
  const TensorLock lock;
  if (config.force_ltc_data) {
    if (auto others = torch_xla_ext::WithoutOthersTraces(*tensors)) {
      return upstream(this, &*others, devices, config, warm_up_cache_only);
    }
  }
  return upstream(this, tensors, devices, config, warm_up_cache_only);
}

torch::lazy::hash_t XLAGraphExecutor::GetGraphHash(
    const std::vector<XLATensorPtr>& tensors) {
  using Function =
      torch::lazy::hash_t(XLAGraphExecutor*, const std::vector<XLATensorPtr>&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor12GetGraphHashERKSt6vectorIN3c1013"
      "intrusive_ptrINS_9XLATensorENS2_6detail34intrusive_target_default_null_"
      "typeIS4_EEEESaIS8_EE");
  const TensorLock lock;
  return upstream(this, tensors);
}

void XLAGraphExecutor::ExtractIRAndPrepareXlaData_(
    std::vector<XLATensorPtr>* tensors, const SyncTensorsConfig& config,
    const absl::Span<const size_t> indices,
    std::vector<torch::lazy::Value>& ir_values,
    std::vector<BackendDataPtr>& tensor_data_vec) {
  using Function =
      void(XLAGraphExecutor*, std::vector<XLATensorPtr>*,
           const SyncTensorsConfig&, absl::Span<const size_t>,
           std::vector<torch::lazy::Value>&, std::vector<BackendDataPtr>&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor27ExtractIRAndPrepareXlaData_EPSt6vector"
      "IN3c1013intrusive_ptrINS_9XLATensorENS2_6detail34intrusive_target_"
      "default_null_typeIS4_EEEESaIS8_EERKN5torch4lazy17LazyGraphExecutor17"
      "SyncTensorsConfigEN4absl12lts_202308024SpanIKmEERS1_INSD_5ValueESaISN_"
      "EERS1_ISt10shared_ptrINSD_11BackendDataEESaIST_EE");
  SyncTensorsConfig keeps_operations = config;
  keeps_operations.force_ltc_data = false;
  upstream(this, tensors, keeps_operations, indices, ir_values,
           tensor_data_vec);
}

std::vector<BackendDataPtr> XLAGraphExecutor::SetTensorData(
    std::vector<XLATensorPtr>* tensors, const SyncTensorsConfig& config,
    absl::Span<const size_t> indices,
    const std::vector<BackendDataPtr>& tensor_data_vec) {
  using Function = std::vector<BackendDataPtr>(
      XLAGraphExecutor*, std::vector<XLATensorPtr>*, const SyncTensorsConfig&,
      absl::Span<const size_t>, const std::vector<BackendDataPtr>&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor13SetTensorDataEPSt6vectorIN3c1013"
      "intrusive_ptrINS_9XLATensorENS2_6detail34intrusive_target_default_null_"
      "typeIS4_EEEESaIS8_EERKN5torch4lazy17LazyGraphExecutor17SyncTensorsConfig"
      "EN4absl12lts_202308024SpanIKmEERKS1_ISt10shared_ptrINSD_11BackendDataEE"
      "SaISP_EE");
  if (config.force_ltc_data) {
    torch_xla_ext::ReplaceOperations(*tensors, indices, tensor_data_vec);
  }
  return upstream(this, tensors, config, indices, tensor_data_vec);
}

// Runs a program of torch.compile, whose inputs are read while it has the
// device's lock.
std::vector<BackendDataPtr> XLAGraphExecutor::ExecuteComputationWithBarrier(
    torch::lazy::hash_t hash, const std::vector<at::IValue>& graph_inputs,
    const torch::lazy::BackendDevice& device) {
  using Function = std::vector<BackendDataPtr>(
      XLAGraphExecutor*, torch::lazy::hash_t, const std::vector<at::IValue>&,
      const torch::lazy::BackendDevice&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor29ExecuteComputationWithBarrierEN5torch4"
      "lazy6hash_tERKSt6vectorIN3c106IValueESaIS6_EERKNS2_13BackendDeviceE");
  const torch_xla_ext::DeviceIsLocked locked;
  return upstream(this, hash, graph_inputs, device);
}

// Upstream returns a reference into the tensor's operation or data.
runtime::util::MaybeRef<xla::Shape> XLATensor::shape() const {
  using Function = runtime::util::MaybeRef<xla::Shape>(const XLATensor*);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr), "_ZNK9torch_xla9XLATensor5shapeEv");
  const torch_xla_ext::ShapeLock lock;
  return runtime::util::MaybeRef<xla::Shape>(
      torch_xla_ext::KeptShape(upstream(this).get()));
}

torch::lazy::Value XLATensor::GetIrValue() const {
  using Function = torch::lazy::Value(const XLATensor*);
  static Function* const upstream =
      UpstreamFunction(static_cast<Function*>(nullptr),
                       "_ZNK9torch_xla9XLATensor10GetIrValueEv");
  const TensorLock lock(*this);
  return upstream(this);
}

void XLATensor::SetIrValue(torch::lazy::Value ir_value, bool inplace,
                           bool delay_eager_execution) {
  using Function = void(XLATensor*, torch::lazy::Value, bool, bool);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla9XLATensor10SetIrValueEN5torch4lazy5ValueEbb");
  const TensorLock lock;
  torch_xla_ext::NoteTraced(GetUniqueId());
  upstream(this, std::move(ir_value), inplace, delay_eager_execution);
}

// Upstream's function multiplies the sizes in the member that the next function
// reads.
extern "C" void SetUpSizes(c10::TensorImpl* impl) __asm__(SET_UP_SIZES);
extern "C" int64_t NumElements(const c10::TensorImpl* impl) __asm__(
    NUM_ELEMENTS);

extern "C" void SetUpSizes(c10::TensorImpl* impl) {
  static const auto upstream = UpstreamFunction(&SetUpSizes, SET_UP_SIZES);
  const torch_xla_ext::ShapeLock lock;
  upstream(impl);
}

extern "C" int64_t NumElements(const c10::TensorImpl* impl) {
  static const auto upstream = UpstreamFunction(&NumElements, NUM_ELEMENTS);
  const torch_xla_ext::ShapeLock lock;
  return upstream(impl);
}

}  // namespace torch_xla
