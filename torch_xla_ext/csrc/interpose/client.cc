// Interposes on GetComputationClient and GetComputationClientIfInitialized: a
// new client receives the "CUDA" targets, autograd threads for its devices, and
// the seed that torch.manual_seed has set before. If a client cannot be
// created, the process stays usable (runtime_fixes/failures.h).
//
// This works because the upstream binary calls both functions through its PLT,
// even from the file that defines them. The upstream functions are called from
// here.

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/registry/registration.h"
#include "torch_xla_ext/csrc/runtime_fixes/failures.h"
#include "torch_xla_ext/csrc/runtime_fixes/new_client.h"

namespace torch_xla::runtime {
namespace {

void ForwardTargets() {
  const char* device_type = std::getenv("PJRT_DEVICE");
  const auto plugin = pjrt::PjrtApi("cuda");
  torch_xla_ext::ForwardTargets(device_type == nullptr ? "" : device_type,
                                plugin.ok() ? *plugin : nullptr);
}

}  // namespace

const absl::StatusOr<ComputationClient*>& GetComputationClient() {
  static const auto upstream = UpstreamFunction(&GetComputationClient);
  return torch_xla_ext::MakeClient(
      []() -> const absl::StatusOr<ComputationClient*>& {
        const absl::StatusOr<ComputationClient*>& client = upstream();
        static std::once_flag forwarded;
        if (client.ok()) {
          std::call_once(forwarded, ForwardTargets);
          // Autograd asks for the client again, to count its devices.
          static std::atomic<bool> is_known = false;
          if (!is_known.exchange(true)) torch_xla_ext::ClientIsMade();
        }
        return client;
      });
}

ComputationClient* GetComputationClientIfInitialized() {
  static const auto upstream =
      UpstreamFunction(&GetComputationClientIfInitialized);
  return torch_xla_ext::ClientFailed() ? nullptr : upstream();
}

}  // namespace torch_xla::runtime
