// Interposes on functions in which the upstream binary waits for a program to
// end: they release the GIL (runtime_fixes/without_gil.h), and throw if another
// process is lost (runtime_fixes/lost_process.h). failed_execution.cc has more
// of them. Data that XLA cannot gather is an error (runtime_fixes/devices.h).
// A tensor that has its value is read while later programs are being started,
// and torch_xla.sync() does not wait for them if it computes nothing.
//
// This works because the upstream binary calls torch's two and
// SyncLiveTensorsGraph through its PLT, and PjRtComputationClient's through a
// vtable, which refers to them by their symbols. The original functions are
// called from here, with copies of the arguments, because the exception does
// not wait for them to return.
#include <dlfcn.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/graph/launch.h"
#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/device_context.h"
#include "torch_xla_ext/csrc/runtime_fixes/devices.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"
#include "torch_xla_ext/csrc/runtime_fixes/without_gil.h"

namespace {

// The data that this thread copies to the host.
thread_local torch::lazy::BackendDataPtr read_data;

}  // namespace

namespace torch::lazy {

std::vector<ExceptionCleanup> LazyGraphExecutor::DeviceLockerArena::LockDevices(
    const std::set<BackendDevice>& devices) {
  static const auto upstream = torch_xla::UpstreamFunction(
      &LazyGraphExecutor::DeviceLockerArena::LockDevices);
  const torch_xla_ext::WithoutGil without_gil;
  return torch_xla_ext::WaitUnlessLost(
      [this, devices] { return upstream(this, devices); });
}

void LazyGraphExecutor::DeviceBarrier(const BackendDevice& device) {
  static const auto upstream =
      torch_xla::UpstreamFunction(&LazyGraphExecutor::DeviceBarrier);
  const torch_xla_ext::WithoutGil without_gil;
  const auto is_readable = [device, data = read_data] {
    return torch_xla_ext::graph::LaunchTicket::WaitUntilReadable(device, data);
  };
  if (read_data != nullptr && torch_xla_ext::WaitUnlessLost(is_readable)) {
    return;
  }
  torch_xla_ext::WaitUnlessLost([this, device] { upstream(this, device); });
}

}  // namespace torch::lazy

namespace torch_xla {
namespace {

struct LazyGraphExecutor : torch::lazy::LazyGraphExecutor {
  using torch::lazy::LazyGraphExecutor::DeviceLockerArena;
};
using SyncTensorCollection = XLAGraphExecutor::SyncTensorCollection;

// Whether a tensor of the device is still to be computed or transferred.
// Upstream finds out more slowly: it makes an object for each live tensor.
bool HasPendingTensor(const torch::lazy::BackendDevice& device) {
  const torch_xla_ext::TensorLock lock;
  auto* const context = torch_xla_ext::ContextOf(device);
  // Destroyed without the context's lock, which data's destructor acquires.
  std::vector<std::shared_ptr<torch::lazy::LazyTensor::Data>> live;
  {
    const std::lock_guard<std::mutex> context_lock(context->lock);
    live.reserve(context->tensors_data.size());
    for (const auto& [id, data] : context->tensors_data) {
      live.push_back(data.lock());
    }
  }
  return std::any_of(live.begin(), live.end(), [](const auto& data) {
    return data != nullptr && data->handle == nullptr;
  });
}

}  // namespace

// XLAGraphExecutor's virtual function. It calls torch's, which locks the device
// without a call through the PLT.
extern "C" void
TensorCollectionBarrier(XLAGraphExecutor*, SyncTensorCollection*) __asm__(
    "_ZN9torch_xla16XLAGraphExecutor23TensorCollectionBarrierEPN5torch4lazy"
    "17LazyGraphExecutor20SyncTensorCollectionE");

extern "C" void TensorCollectionBarrier(XLAGraphExecutor* executor,
                                        SyncTensorCollection* collection) {
  static const auto upstream = UpstreamFunction(&TensorCollectionBarrier);
  if (collection->indices.empty() &&
      torch_xla_ext::graph::LazyStep::NeedNotWait(collection->device)) {
    return;
  }
  // Like torch, does not lock again if the device is locked.
  if (torch_xla_ext::ProcessesWatched() && collection->unlocker.empty() &&
      collection->device.toString() != "Unknown0") {
    collection->unlocker =
        LazyGraphExecutor::DeviceLockerArena::Get()->LockDevices(
            {collection->device});
  }
  const torch_xla_ext::WithoutGil without_gil;
  upstream(executor, collection);
}

void XLAGraphExecutor::SyncLiveTensorsGraph(
    const torch::lazy::BackendDevice* device,
    c10::ArrayRef<std::string> devices, bool wait) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::SyncLiveTensorsGraph);
  using torch_xla_ext::graph::LazyStep;
  const LazyStep step(wait);
  if (device == nullptr || HasPendingTensor(*device)) {
    upstream(this, device, devices, wait);
  } else if (!LazyStep::NeedNotWait(*device)) {
    torch_xla_ext::graph::LockDevice(*device);
  }
}

at::Tensor XLATensor::ToTensor(bool detached) {
  using Upstream = at::Tensor (*)(XLATensor*, bool);
  static const auto upstream = reinterpret_cast<Upstream>(
      dlsym(RTLD_NEXT, "_ZN9torch_xla9XLATensor8ToTensorEb"));  // virtual
  struct Reading {
    explicit Reading(torch::lazy::BackendDataPtr data) {
      read_data = std::move(data);
    }
    ~Reading() { read_data = nullptr; }
  };
  const Reading reading(torch_xla_ext::DataHandle(*this));
  return upstream(this, detached);
}

}  // namespace torch_xla

namespace torch_xla::runtime {

PjRtComputationClient::Literals PjRtComputationClient::TransferFromDevice(
    absl::Span<const ComputationClient::DataPtr> handles) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::TransferFromDevice);
  for (const ComputationClient::DataPtr& handle : handles) {
    if (const auto sharding = GetDataSharding(handle)) {
      torch_xla_ext::CheckIsReadable(sharding->SerializeAsString());
    }
  }
  const torch_xla_ext::WithoutGil without_gil;
  return torch_xla_ext::WaitUnlessLost(
      [this, own = std::vector<ComputationClient::DataPtr>(handles.begin(),
                                                           handles.end())] {
        return upstream(this, own);
      });
}

void PjRtComputationClient::WaitDeviceOps(
    absl::Span<const std::string> devices) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::WaitDeviceOps);
  const torch_xla_ext::WithoutGil without_gil;
  torch_xla_ext::WaitUnlessLost(
      [this, own = std::vector<std::string>(devices.begin(), devices.end())] {
        upstream(this, own);
      });
}

}  // namespace torch_xla::runtime
