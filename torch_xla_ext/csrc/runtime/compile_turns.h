// When programs are compiled and when they run, on a GPU.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_COMPILE_TURNS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_COMPILE_TURNS_H_

#include <shared_mutex>

namespace torch_xla_ext {

// Held alone by who compiles a program, after all work of the device has ended,
// and shared by who starts one.
//
// A program that runs for the first time loads its cuDNN graphs, for which
// cuDNN captures a stream. The compiler, which times kernels on the same GPU,
// breaks such a capture: "capturing stream has unjoined work".
std::shared_mutex& CompileTurns();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_COMPILE_TURNS_H_
