// XLA's distributed runtime as compiled into the upstream binary. The caller
// fills in the options; only the fields that the front library sets have a name
// here, and the bytes between them are undeclared.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_DISTRIBUTED_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_DISTRIBUTED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "torch_xla_ext/csrc/interpose/abi/absl.h"
#include "torch_xla_ext/csrc/interpose/abi/layout.h"

namespace xla {

// An absl::Duration: the seconds in two halves, and the fraction of a second.
struct Seconds {
  explicit Seconds(int seconds) : halves{static_cast<uint32_t>(seconds)} {}

  uint32_t halves[2];
  uint32_t part = 0;
};
static_assert(sizeof(Seconds) == torch_xla_ext::layout::kDurationSize);

class DistributedRuntimeClient {
 public:
  struct Options {
    Options() = delete;  // always the upstream binary's
    char before[torch_xla_ext::layout::kClientHeartbeatOffset];
    Seconds heartbeat_timeout;
    char between[torch_xla_ext::layout::kLostCallbackOffset -
                 torch_xla_ext::layout::kClientHeartbeatOffset -
                 torch_xla_ext::layout::kDurationSize];
    alignas(8) std::function<void(absl::Status)> missed_heartbeat_callback;
  };
};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // no inheritance
static_assert(offsetof(DistributedRuntimeClient::Options,
                       missed_heartbeat_callback) ==
              torch_xla_ext::layout::kLostCallbackOffset);
#pragma GCC diagnostic pop

class CoordinationServiceImpl {
 public:
  struct Options {
    Options() = delete;  // always the upstream binary's
    char before[torch_xla_ext::layout::kServiceHeartbeatOffset];
    Seconds heartbeat_timeout;
  };
};

class DistributedRuntimeService;

absl::StatusOr<DistributedRuntimeService*> GetDistributedRuntimeService(
    std::string address, const CoordinationServiceImpl::Options& options);
std::shared_ptr<DistributedRuntimeClient> GetDistributedRuntimeClient(
    std::string address, const DistributedRuntimeClient::Options& options,
    bool use_compression);

}  // namespace xla

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_DISTRIBUTED_H_
