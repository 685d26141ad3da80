// Flags of XLA's compiler.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_COMPILER_FLAGS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_COMPILER_FLAGS_H_

namespace torch_xla_ext {

// Adds flags in front of those in the environment variable XLA_FLAGS, which
// override them: on the CPU, maxima and minima of NaN are NaN, as in PyTorch.
// XLA reads them when a client is made. A second call does nothing.
void SetCompilerFlags();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_COMPILER_FLAGS_H_
