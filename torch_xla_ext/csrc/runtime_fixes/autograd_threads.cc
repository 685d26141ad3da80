#include "torch_xla_ext/csrc/runtime_fixes/autograd_threads.h"

#include <torch/csrc/autograd/engine.h>

namespace torch_xla_ext {
namespace {

// Gives access to protected members of the engine.
struct DeviceThreads : torch::autograd::Engine {
  static void StartLate(torch::autograd::Engine* engine) {
    const bool has_counted =
        (engine->*(&DeviceThreads::thread_pool_shared_)) != nullptr;
    const bool found_none =
        (engine->*(&DeviceThreads::device_ready_queues_)).empty();
    if (has_counted && found_none) {
      (engine->*(&DeviceThreads::start_device_threads))();
    }
  }
};

}  // namespace

void StartAutogradThreads() {
  DeviceThreads::StartLate(&torch::autograd::Engine::get_default_engine());
}

}  // namespace torch_xla_ext
