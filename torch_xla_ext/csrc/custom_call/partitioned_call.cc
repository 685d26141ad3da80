#include "torch_xla_ext/csrc/custom_call/partitioned_call.h"

#include <torch/csrc/lazy/core/hash.h>

#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "torch_xla_ext/csrc/registry/text.h"

namespace torch_xla_ext {
namespace {

struct Calls {
  std::mutex mutex;
  // A reference to a value stays valid when others are added.
  std::unordered_map<std::string, CustomCallConfig> by_key;
};

Calls& GetCalls() {
  static auto* const calls = new Calls;  // XLA may compile until the end
  return *calls;
}

thread_local bool lowers_whole_calls = false;

}  // namespace

void SetLowersWholeCalls(bool lowers) { lowers_whole_calls = lowers; }
bool LowersWholeCalls() { return lowers_whole_calls; }

std::string KeepPartitionedCall(const CustomCallConfig& config) {
  std::string key =
      config.target + ":" + torch::lazy::HashToString(config.Hash());
  Calls& calls = GetCalls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  calls.by_key.emplace(key, config);
  return key;
}

const CustomCallConfig& PartitionedCall(const std::string& key) {
  Calls& calls = GetCalls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  const auto found = calls.by_key.find(key);
  if (found == calls.by_key.end()) {
    throw std::invalid_argument(
        std::string(kPartitionedTarget) + ": no call " + Quoted(key) +
        " was traced in this process; a program for several devices can only "
        "be compiled by the process that traced it");
  }
  return found->second;
}

}  // namespace torch_xla_ext
