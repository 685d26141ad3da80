// The client that has been made gets the "CUDA" targets, and one that could not
// be made leaves the process usable.
//
// torch_xla makes its client once. Where that throws, as when no GPU is there,
// stock torch_xla reaches an ABSL_CHECK at the next use of the client, and that
// includes the end of the process: it aborts. Here the error is kept: each
// later use raises it again, and the end of the process sees no client.
//
// The stock binary calls both functions through its PLT, also from the file
// that defines them, and so arrives here.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>

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

// Why there is no client; null while nothing failed. Never deleted.
std::atomic<const std::string*> failure{nullptr};

}  // namespace

const absl::StatusOr<ComputationClient*>& GetComputationClient() {
  using Stock = const absl::StatusOr<ComputationClient*>& (*)();
  static const auto stock = reinterpret_cast<Stock>(
      dlsym(RTLD_NEXT, "_ZN9torch_xla7runtime20GetComputationClientEv"));
  if (const std::string* text = failure) throw std::runtime_error(*text);
  try {
    const absl::StatusOr<ComputationClient*>& client = stock();
    static std::once_flag forwarded;
    if (client.ok()) std::call_once(forwarded, ForwardTargets);
    return client;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    // pybind11 appends where in Python an exception was raised.
    failure = new std::string(text.substr(0, text.find("\n\nAt:\n")));
    throw;
  }
}

ComputationClient* GetComputationClientIfInitialized() {
  using Stock = ComputationClient* (*)();
  static const auto stock = reinterpret_cast<Stock>(dlsym(
      RTLD_NEXT, "_ZN9torch_xla7runtime33GetComputationClientIfInitializedEv"));
  return failure == nullptr ? stock() : nullptr;
}

}  // namespace torch_xla::runtime
