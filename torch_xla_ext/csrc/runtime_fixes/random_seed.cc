#include "torch_xla_ext/csrc/runtime_fixes/random_seed.h"

#include <mutex>
#include <optional>

#include "torch_xla_ext/csrc/runtime_fixes/failures.h"
#include "torch_xla_ext/csrc/runtime_fixes/new_client.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace {

std::mutex mutex;
std::optional<uint64_t> pending;  // only until there is a client

// An upper bound of the device ids of a process, which may have gaps.
constexpr int kMaxLocalDevices = 64;

// Does not call bridge::GetBackendDevices(), which may be creating the client.
void SetSeeds(uint64_t seed) {
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  const auto* const client =
      torch_xla::runtime::GetComputationClientIfInitialized();
  for (int i = 0; i < kMaxLocalDevices; ++i) {
    const auto device = client->LookupAddressableDevice(i);
    if (!device.ok()) continue;
    executor->SetRngSeed(
        torch_xla::ParseDeviceString(client->PjRtDeviceToString(*device)),
        seed);
  }
}

void SeedNewDevices() {
  std::optional<uint64_t> seed;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    seed.swap(pending);
  }
  if (seed) SetSeeds(*seed);
}

}  // namespace

void SeedAllDevices(uint64_t seed) {
  // In a forked process, such as a loader's worker, which seeds PyTorch, the
  // locks of seeds may belong to threads that only the parent has.
  if (ClientFailed()) return;
  // The device of sharded programs needs no client. It may create one while its
  // seed is locked, so SeedNewDevices must not set it.
  torch_xla::XLAGraphExecutor::Get()->SetRngSeed(
      torch_xla::ParseDeviceString("SPMD:0"), seed);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (torch_xla::runtime::GetComputationClientIfInitialized() == nullptr) {
      pending = seed;
      SetActionOfNewClient(&SeedNewDevices);
      return;
    }
  }
  SetSeeds(seed);
}

}  // namespace torch_xla_ext
