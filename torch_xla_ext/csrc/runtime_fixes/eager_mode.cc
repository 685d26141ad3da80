#include "torch_xla_ext/csrc/runtime_fixes/eager_mode.h"

#include <utility>

namespace torch_xla_ext {
namespace {

thread_local int delays = 0;

}  // namespace

DelayedExecution::DelayedExecution() { ++delays; }
DelayedExecution::~DelayedExecution() { --delays; }
bool DelayedExecution::IsOn() { return delays > 0; }

void ExecuteTogether(const std::vector<at::Tensor>& tensors) {
  std::vector<torch_xla::XLATensorPtr> pending;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    torch_xla::XLATensorPtr xla = torch_xla::bridge::TryGetXlaTensor(tensor);
    if (xla && xla->data()->ir_value) pending.push_back(std::move(xla));
  }
  if (pending.empty()) return;
  torch_xla::XLAGraphExecutor::Get()->ApplyEagerSync(pending);
}

}  // namespace torch_xla_ext
