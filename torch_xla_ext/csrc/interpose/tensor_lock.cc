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

#include <c10/util/ScopeExit.h>

#include <memory>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/thread_trace.h"

namespace torch_xla {

using torch::lazy::BackendDataPtr;
using torch_xla_ext::TensorLock;

namespace {

// Whether this thread sets up a tensor's sizes, and holds the ShapeLock until
// it has read the shape.
thread_local bool shape_is_locked = false;

}  // namespace

std::shared_ptr<XLAGraphExecutor::Async>
XLAGraphExecutor::SyncTensorsGraphInternal(
    std::vector<XLATensorPtr>* tensors, absl::Span<const std::string> devices,
    const SyncTensorsConfig& config, bool warm_up_cache_only) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::SyncTensorsGraphInternal);
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
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::GetGraphHash);
  const TensorLock lock;
  return upstream(this, tensors);
}

void XLAGraphExecutor::ExtractIRAndPrepareXlaData_(
    std::vector<XLATensorPtr>* tensors, const SyncTensorsConfig& config,
    const absl::Span<const size_t> indices,
    std::vector<torch::lazy::Value>& ir_values,
    std::vector<BackendDataPtr>& tensor_data_vec) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::ExtractIRAndPrepareXlaData_);
  SyncTensorsConfig keeps_operations = config;
  keeps_operations.force_ltc_data = false;
  upstream(this, tensors, keeps_operations, indices, ir_values,
           tensor_data_vec);
}

std::vector<BackendDataPtr> XLAGraphExecutor::SetTensorData(
    std::vector<XLATensorPtr>* tensors, const SyncTensorsConfig& config,
    absl::Span<const size_t> indices,
    const std::vector<BackendDataPtr>& tensor_data_vec) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::SetTensorData);
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
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::ExecuteComputationWithBarrier);
  const torch_xla_ext::DeviceIsLocked locked;
  return upstream(this, hash, graph_inputs, device);
}

// Upstream returns a reference into the tensor's operation or data.
runtime::util::MaybeRef<xla::Shape> XLATensor::shape() const {
  static const auto upstream = UpstreamFunction(&XLATensor::shape);
  const torch_xla_ext::ShapeLock lock;
  if (shape_is_locked) return upstream(this);
  return runtime::util::MaybeRef<xla::Shape>(
      torch_xla_ext::KeptShape(upstream(this).get()));
}

torch::lazy::Value XLATensor::GetIrValue() const {
  static const auto upstream = UpstreamFunction(&XLATensor::GetIrValue);
  const TensorLock lock(*this);
  return upstream(this);
}

void XLATensor::SetIrValue(torch::lazy::Value ir_value, bool inplace,
                           bool delay_eager_execution) {
  static const auto upstream = UpstreamFunction(&XLATensor::SetIrValue);
  const TensorLock lock;
  torch_xla_ext::NoteTraced(GetUniqueId());
  upstream(this, std::move(ir_value), inplace, delay_eager_execution);
}

// Upstream's function multiplies the sizes in the member that the next function
// reads.
extern "C" void SetUpSizes(c10::TensorImpl* impl) __asm__(
    "_ZN9torch_xla13XLATensorImpl19SetupSizePropertiesEv");
extern "C" int64_t NumElements(const c10::TensorImpl* impl) __asm__(
    "_ZNK9torch_xla13XLATensorImpl12numel_customEv");

extern "C" void SetUpSizes(c10::TensorImpl* impl) {
  static const auto upstream = UpstreamFunction(&SetUpSizes);
  const torch_xla_ext::ShapeLock lock;
  shape_is_locked = lock.is_held();
  const auto unlocked = c10::make_scope_exit([] { shape_is_locked = false; });
  upstream(impl);
}

extern "C" int64_t NumElements(const c10::TensorImpl* impl) {
  static const auto upstream = UpstreamFunction(&NumElements);
  const torch_xla_ext::ShapeLock lock;
  return upstream(impl);
}

}  // namespace torch_xla
