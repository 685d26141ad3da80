// Which programs run alone on a GPU: those that run for the first time.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_COMPILE_TURNS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_COMPILE_TURNS_H_

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_set>

namespace torch_xla_ext {

// A program that runs for the first time loads its cuDNN graphs, for which
// cuDNN captures a stream. Other work on the GPU breaks such a capture:
// "capturing stream has unjoined work". So such a program starts when all other
// work has ended, and no other starts, or is compiled, until it has ended.
class CompileTurns {
 public:
  static CompileTurns& Get();

  // Compiles. `wait` waits for all work of the device.
  template <typename Wait, typename Compile>
  auto Alone(const Wait& wait, const Compile& compile) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    wait();
    return compile();
  }

  // Runs `program`.
  template <typename Wait, typename Run>
  auto RunProgram(const void* program, const Wait& wait, const Run& run) {
    {
      const std::shared_lock<std::shared_mutex> lock(mutex_);
      if (known_.count(program) != 0) return run();
    }
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    wait();
    auto results = run();
    wait();
    known_.insert(program);
    return results;
  }

 private:
  std::shared_mutex mutex_;
  // Programs that have run. One that was freed may have another's address: then
  // that one does not run alone.
  std::unordered_set<const void*> known_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_COMPILE_TURNS_H_
