// Interposes on the two functions through which torch_xla creates XLA's
// coordination service and its client: a lost process raises an exception
// (runtime_fixes/lost_process.h), after the time that torch_xla's environment
// variables set. Upstream passes that time as an interval and a count, which
// XLA at the pinned commit ignores.
//
// This works because the upstream binary calls both through its PLT, with
// options on the caller's stack. The upstream functions are called from here.

#include <memory>
#include <string>
#include <utility>

#include "torch_xla_ext/csrc/interpose/abi/distributed.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"

namespace xla {

absl::StatusOr<DistributedRuntimeService*> GetDistributedRuntimeService(
    std::string address, const CoordinationServiceImpl::Options& options) {
  static const auto upstream =
      torch_xla::UpstreamFunction(&GetDistributedRuntimeService);
  const_cast<CoordinationServiceImpl::Options&>(options).heartbeat_timeout =
      Seconds(torch_xla_ext::HeartbeatTimeout());
  return upstream(std::move(address), options);
}

std::shared_ptr<DistributedRuntimeClient> GetDistributedRuntimeClient(
    std::string address, const DistributedRuntimeClient::Options& options,
    bool use_compression) {
  static const auto upstream =
      torch_xla::UpstreamFunction(&GetDistributedRuntimeClient);
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
