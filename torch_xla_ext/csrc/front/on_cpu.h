// Runs an operator on the CPU, through the same fallback as operators that
// torch_xla does not implement, so that torch.compile knows of it.
#ifndef TORCH_XLA_EXT_CSRC_FRONT_ON_CPU_H_
#define TORCH_XLA_EXT_CSRC_FRONT_ON_CPU_H_

#include <ATen/native/CPUFallback.h>

namespace torch_xla {

// The stock binary's function: copies operands to the CPU, and results back.
void xla_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// `Operator` is one of at::_ops.
template <typename Operator, typename... Arguments>
auto OnCpu(const Arguments&... arguments) {
  return at::native::call_fallback_fn<&xla_fallback, Operator>::call(
      arguments...);
}

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_FRONT_ON_CPU_H_
