// Sets flags of XLA's compiler.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_COMPILER_FLAGS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_COMPILER_FLAGS_H_

namespace torch_xla_ext {

// Prepends flags to the environment variable XLA_FLAGS, whose own flags take
// precedence: on the CPU, maxima and minima of NaN are NaN, and 16-bit values
// are rounded after each operation, as in PyTorch. (discovery.py adds those for
// GPUs.) Removes those that a parent process has added for another device. XLA
// reads the flags when a client is created. A second call does nothing.
void SetCompilerFlags();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_COMPILER_FLAGS_H_
