// Stands before functions in which the stock binary waits for a program to end:
// they release the GIL (calls/without_gil.h). failed_execution.cc has more.
//
// It may, because the stock binary calls torch's two through its PLT, and
// TransferFromDevice by a vtable, which names it by its symbol. Here the
// functions that would have been called are called.
#include <dlfcn.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include <set>
#include <vector>

#include "torch_xla_ext/csrc/calls/without_gil.h"
#include "torch_xla_ext/csrc/front/abi/torch_xla.h"

namespace torch::lazy {

std::vector<ExceptionCleanup> LazyGraphExecutor::DeviceLockerArena::LockDevices(
    const std::set<BackendDevice>& devices) {
  using Stock = std::vector<ExceptionCleanup> (*)(
      DeviceLockerArena*, const std::set<BackendDevice>&);
  static const auto stock = reinterpret_cast<Stock>(dlsym(
      RTLD_NEXT,
      "_ZN5torch4lazy17LazyGraphExecutor17DeviceLockerArena11LockDevicesERKSt3s"
      "etINS0_13BackendDeviceESt4lessIS4_ESaIS4_EE"));
  const torch_xla_ext::WithoutGil without_gil;
  return stock(this, devices);
}

void LazyGraphExecutor::DeviceBarrier(const BackendDevice& device) {
  using Stock = void (*)(LazyGraphExecutor*, const BackendDevice&);
  static const auto stock = reinterpret_cast<Stock>(
      dlsym(RTLD_NEXT,
            "_ZN5torch4lazy17LazyGraphExecutor13DeviceBarrierERKNS0_"
            "13BackendDeviceE"));
  const torch_xla_ext::WithoutGil without_gil;
  stock(this, device);
}

}  // namespace torch::lazy

namespace torch_xla::runtime {

PjRtComputationClient::Literals PjRtComputationClient::TransferFromDevice(
    absl::Span<const ComputationClient::DataPtr> handles) {
  using Stock = Literals (*)(PjRtComputationClient*,
                             absl::Span<const ComputationClient::DataPtr>);
  static const auto stock = reinterpret_cast<Stock>(
      dlsym(RTLD_NEXT,
            "_ZN9torch_xla7runtime21PjRtComputationClient18TransferFromDeviceEN"
            "4absl12lts_202308024SpanIKSt10shared_ptrINS0_17ComputationClient4D"
            "ataEEEE"));
  const torch_xla_ext::WithoutGil without_gil;
  return stock(this, handles);
}

}  // namespace torch_xla::runtime
