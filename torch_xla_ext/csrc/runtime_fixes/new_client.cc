#include "torch_xla_ext/csrc/runtime_fixes/new_client.h"

#include <atomic>

#include "torch_xla_ext/csrc/runtime_fixes/autograd_threads.h"

namespace torch_xla_ext {
namespace {

std::atomic<void (*)()> action_of_new_client = nullptr;

}  // namespace

void SetActionOfNewClient(void (*action)()) { action_of_new_client = action; }

void ClientIsMade() {
  StartAutogradThreads();
  if (void (*const action)() = action_of_new_client) action();
}

}  // namespace torch_xla_ext
