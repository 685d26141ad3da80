// Interposes on functions that look up a device: the number of a missing device
// raises an error of one sentence, the device of SPMD has a kind, attributes
// and memory (runtime_fixes/devices.h), and after use_spmd() it is the only
// one. Upstream lists devices once: if a program had asked for one before
// use_spmd(), its next computation crashed the process.
//
// This works because the upstream binary calls the first one through its PLT,
// and PjRtComputationClient's through its vtable, which refers to them by their
// symbols. The upstream functions are called from here.
#include "torch_xla_ext/csrc/runtime_fixes/devices.h"

#include <stdexcept>
#include <string>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define CLIENT "_ZN9torch_xla7runtime21PjRtComputationClient"

namespace torch_xla {
namespace bridge {
namespace {

const torch::lazy::BackendDevice& SpmdDevice() {
  static const auto& device =
      *new torch::lazy::BackendDevice(ParseDeviceString("SPMD:0"));
  return device;
}

}  // namespace

torch::lazy::BackendDevice GetCurrentDevice() {
  static const auto upstream = UpstreamFunction(&GetCurrentDevice);
  return UseVirtualDevice(/*force_spmd=*/false) ? SpmdDevice() : upstream();
}

torch::lazy::BackendDevice AtenDeviceToXlaDevice(const c10::Device& device) {
  static const auto upstream = UpstreamFunction(&AtenDeviceToXlaDevice);
  const bool is_spmd = UseVirtualDevice(/*force_spmd=*/false);
  try {
    const torch::lazy::BackendDevice found = upstream(device);
    if (!is_spmd) return found;
    torch_xla_ext::CheckDeviceExists(device.has_index() ? device.index() : 0,
                                     /*count=*/1, is_spmd);
    return SpmdDevice();
  } catch (const std::out_of_range&) {
    const auto client = runtime::GetComputationClientIfInitialized();
    torch_xla_ext::CheckDeviceExists(
        device.index(),
        is_spmd ? 1
                : reinterpret_cast<runtime::PjRtComputationClient*>(client)
                      ->GetLocalDevices()
                      .size(),
        is_spmd);
    throw;
  }
}

}  // namespace bridge

namespace runtime {

std::string PjRtComputationClient::GetDeviceKind(const std::string& device) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::GetDeviceKind);
  return upstream(this, torch_xla_ext::AnyOf(device, GetLocalDevices()));
}

PjRtComputationClient::DeviceAttributes
PjRtComputationClient::GetDeviceAttributes(const std::string& device) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::GetDeviceAttributes);
  return upstream(this, torch_xla_ext::AnyOf(device, GetLocalDevices()));
}

ComputationClient::MemoryInfo PjRtComputationClient::GetMemoryInfo(
    const std::string& device) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::GetMemoryInfo);
  return torch_xla_ext::MemoryInfoOf(
      device, GetLocalDevices(),
      [this](const std::string& one) { return upstream(this, one); });
}

}  // namespace runtime
}  // namespace torch_xla

#undef CLIENT
#undef STRING
