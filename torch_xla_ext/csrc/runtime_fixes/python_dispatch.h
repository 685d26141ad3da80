// Moves functionalization after PyTorch's Python key, for TorchDispatchModes
// and __torch_dispatch__ of subclasses, and so for FlopCounterMode, make_fx and
// torch.autograd.graph.allow_mutation_on_saved_tensors.
//
// XLA tensors have views by functionalization, whose dispatch key comes before
// Python's and after autograd's. So upstream, Python receives tensors without
// their functional wrappers, and its results have none: writes through its
// views are lost, and a mode does not recognize its own arguments.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_DISPATCH_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_DISPATCH_H_

namespace torch_xla_ext {

// From now on, Python receives the program's own tensors, and functionalization
// comes after it. Call this once, with the GIL.
void FunctionalizeAfterPython();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_DISPATCH_H_
