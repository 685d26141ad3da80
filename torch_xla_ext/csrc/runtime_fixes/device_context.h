// torch_xla's state of a device: its tensors and random numbers.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DEVICE_CONTEXT_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DEVICE_CONTEXT_H_

#include <torch/csrc/lazy/backend/backend_device.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace internal {

// Give access to protected members of torch's classes.
struct GraphExecutor : torch::lazy::LazyGraphExecutor {
  using torch::lazy::LazyGraphExecutor::DeviceContextArena;
};
struct ContextArena : GraphExecutor::DeviceContextArena {
  using Context = DeviceContext;

  static Context* Of(const torch::lazy::BackendDevice& device) {
    return (torch_xla::XLAGraphExecutor::DeviceContextArena::Get()
                ->*(&ContextArena::GetDeviceContext))(device);
  }
};

}  // namespace internal

// Has `lock`, `tensors_data`, `seed`, `running_seed` and `seed_ir_value`.
using DeviceContext = internal::ContextArena::Context;

inline DeviceContext* ContextOf(const torch::lazy::BackendDevice& device) {
  return internal::ContextArena::Of(device);
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DEVICE_CONTEXT_H_
