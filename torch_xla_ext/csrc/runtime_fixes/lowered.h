// Compiles a program later than it is lowered to HLO, and in another thread.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_LOWERED_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_LOWERED_H_

#include <torch/csrc/lazy/backend/lowering_context.h>

#include <functional>

namespace torch_xla_ext {

// Compiles a lowered program, once, in any thread. Refers to no tensor and no
// data.
using CompileFunction = std::function<torch::lazy::ComputationPtr()>;

// Thrown instead of compiling a program. Not a std::exception, because it is
// not an error.
struct OnlyLowered {};

// While it lives, this thread lowers programs instead of compiling them, and
// then throws OnlyLowered.
class LoweringScope {
 public:
  LoweringScope();
  ~LoweringScope();
  LoweringScope(const LoweringScope&) = delete;
  LoweringScope& operator=(const LoweringScope&) = delete;

  CompileFunction compile;  // of the program that has been lowered last
};

// Code that compiles programs first checks whether this thread has a scope; if
// so, it calls the second function, which throws OnlyLowered.
bool IsOnlyLowering();
[[noreturn]] void StopLowered(CompileFunction compile);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_LOWERED_H_
