// Functionalization below PyTorch's Python key: in a TorchDispatchMode, in a
// __torch_dispatch__ of a subclass, and so in FlopCounterMode, make_fx and
// torch.autograd.graph.allow_mutation_on_saved_tensors.
//
// XLA tensors have views by functionalization, whose dispatch key comes before
// Python's and after autograd's. So Python got the values of tensors without
// their wrappers, and its results had none: writes through its views were lost,
// and a mode did not recognize its own arguments.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_DISPATCH_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_DISPATCH_H_

namespace torch_xla_ext {

// From now on Python gets the program's own tensors, and functionalization
// comes after it. Call it once, with the GIL.
void FunctionalizeAfterPython();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PYTHON_DISPATCH_H_
