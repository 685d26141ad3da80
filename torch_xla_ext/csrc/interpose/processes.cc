// Interposes on the two functions through which torch_xla creates XLA's
// coordination service and its client: a lost process raises an exception
// (runtime_fixes/lost_process.h), after the time that torch_xla's environment
// variables set. Upstream passes that time as an interval and a count, which
// XLA at the pinned commit ignores.
//
// This works because the upstream binary calls both through its PLT, with
// options on the caller's stack. The upstream functions are called from here.
#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>

#include "torch_xla_ext/csrc/interpose/abi/distributed.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"

namespace xla {

absl::StatusOr<DistributedRuntimeService*> GetDistributedRuntimeService(
    std::string address, const CoordinationServiceImpl::Options& options) {
  using Upstream = absl::StatusOr<DistributedRuntimeService*> (*)(
      std::string, const CoordinationServiceImpl::Options&);
  static const auto upstream = reinterpret_cast<Upstream>(
      dlsym(RTLD_NEXT,
            "_ZN3xla28GetDistributedRuntimeServiceENSt7__cxx1112basic_stringIcS"
            "t11char_traitsIcESaIcEEERKNS_23CoordinationServiceImpl7OptionsE"));
  const_cast<CoordinationServiceImpl::Options&>(options).heartbeat_timeout =
      Seconds(torch_xla_ext::HeartbeatTimeout());
  return upstream(std::move(address), options);
}

std::shared_ptr<DistributedRuntimeClient> GetDistributedRuntimeClient(
    std::string address, const DistributedRuntimeClient::Options& options,
    bool use_compression) {
  using Upstream = std::shared_ptr<DistributedRuntimeClient> (*)(
      std::string, const DistributedRuntimeClient::Options&, bool);
  static const auto upstream = reinterpret_cast<Upstream>(dlsym(
      RTLD_NEXT,
      "_ZN3xla27GetDistributedRuntimeClientENSt7__cxx1112basic_stringIcSt11char"
      "_traitsIcESaIcEEERKNS_24DistributedRuntimeClient7OptionsEb"));
  auto& own = const_cast<DistributedRuntimeClient::Options&>(options);
  own.heartbeat_timeout = Seconds(torch_xla_ext::HeartbeatTimeout());
  own.missed_heartbeat_callback = [](const absl::Status& status) {
    torch_xla_ext::SetLostProcess(
        status.ToStringSlow(absl::StatusToStringMode::kWithNoExtraData));
  };
  torch_xla_ext::WatchProcesses();
  return upstream(std::move(address), options, use_compression);
}

}  // namespace xla
