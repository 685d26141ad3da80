// Interposes on GetComputationClient and GetComputationClientIfInitialized: a
// new client gets the "CUDA" targets, and autograd threads for its devices. If
// a client cannot be made, the process stays usable (calls/failures.h). In a
// forked child the client's threads are missing, so it counts as failed there.
//
// This works because the stock binary calls both functions through its PLT,
// even from the file that defines them. The stock functions are called from
// here.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "torch_xla_ext/csrc/calls/autograd_threads.h"
#include "torch_xla_ext/csrc/calls/failures.h"
#include "torch_xla_ext/csrc/calls/registration.h"
#include "torch_xla_ext/csrc/front/abi/torch_xla.h"

namespace torch_xla::runtime {
namespace {

void ForwardTargets() {
  const char* device_type = std::getenv("PJRT_DEVICE");
  const auto plugin = pjrt::PjrtApi("cuda");
  torch_xla_ext::ForwardTargets(device_type == nullptr ? "" : device_type,
                                plugin.ok() ? *plugin : nullptr);
}

// Otherwise a child would wait forever for threads that only its parent has.
void FailInForkedChildren() {
  pthread_atfork(nullptr, nullptr, [] {
    torch_xla_ext::SetClientFailure(
        "XLA cannot be used in this process, because it was forked from one "
        "that had used XLA: start processes by multiprocessing's \"spawn\", or "
        "before the first use of XLA");
  });
}

}  // namespace

const absl::StatusOr<ComputationClient*>& GetComputationClient() {
  using Stock = const absl::StatusOr<ComputationClient*>& (*)();
  static const auto stock = reinterpret_cast<Stock>(
      dlsym(RTLD_NEXT, "_ZN9torch_xla7runtime20GetComputationClientEv"));
  return torch_xla_ext::MakeClient(
      []() -> const absl::StatusOr<ComputationClient*>& {
        const absl::StatusOr<ComputationClient*>& client = stock();
        static std::once_flag forwarded;
        if (client.ok()) {
          std::call_once(forwarded, [] {
            ForwardTargets();
            FailInForkedChildren();
          });
          // Autograd asks for the client again, to count its devices.
          static std::atomic<bool> has_threads = false;
          if (!has_threads.exchange(true))
            torch_xla_ext::StartAutogradThreads();
        }
        return client;
      });
}

ComputationClient* GetComputationClientIfInitialized() {
  using Stock = ComputationClient* (*)();
  static const auto stock = reinterpret_cast<Stock>(dlsym(
      RTLD_NEXT, "_ZN9torch_xla7runtime33GetComputationClientIfInitializedEv"));
  return torch_xla_ext::ClientFailed() ? nullptr : stock();
}

}  // namespace torch_xla::runtime
