// Handles failures that upstream's torch_xla ignores. The front library and
// patches/ call these functions.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_FAILURES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_FAILURES_H_

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/core/util.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/compiler_flags.h"
#include "torch_xla_ext/csrc/runtime_fixes/without_gil.h"

namespace torch_xla_ext {

// Whether the client could not be created, for example because there is no GPU.
// torch_xla tries to create its client once; if that fails, the next use aborts
// the process, even the use at exit. So the error is kept: each later use
// raises it again, and the code at exit finds no client.
bool ClientFailed();
void SetClientFailure(const std::string& text);
// Throws std::runtime_error with the client's error, if there is one.
void ThrowClientFailure();

// Makes the client count as failed in processes forked from this one: they
// would wait forever for threads that only this process has. A second call does
// nothing.
void FailInForkedChildren();

// Returns the client, which `make` creates at the first call.
template <typename Make>
decltype(auto) MakeClient(Make make) {
  ThrowClientFailure();
  SetCompilerFlags();
  FailInForkedChildren();
  try {
    return make();
  } catch (const std::exception& error) {
    SetClientFailure(error.what());
    throw;
  }
}

// Waits for an execution without holding Python's GIL; `wait` throws the
// execution's error. torch_xla also stores the error in the locks of the
// execution's devices, `unlockers`, and so raises it again in the next,
// unrelated step on them. Here only the caller receives the error.
template <typename Wait>
void WaitAndTakeError(Wait wait,
                      std::vector<torch::lazy::ExceptionCleanup>* unlockers) {
  const WithoutGil without_gil;
  try {
    wait();
  } catch (...) {
    for (auto& unlocker : *unlockers) unlocker.SetStatus(nullptr);
    throw;
  }
}

// Throws a std::runtime_error: `what`, such as "a tensor", has no value.
[[noreturn]] void ThrowNoValue(const std::string& what,
                               const torch::lazy::BackendData& data);

// Lives while this thread executes a program whose caller has checked that all
// arguments have values, and knows which of them lose their values.
class CheckedExecution {
 public:
  CheckedExecution();
  ~CheckedExecution();
  CheckedExecution(const CheckedExecution&) = delete;
  CheckedExecution& operator=(const CheckedExecution&) = delete;
  static bool InThisThread();
};

// The number of events in which data may have lost its value without being
// replaced: programs that were executed otherwise, or that failed.
uint64_t NumLosses();
void CountLoss();

// Checks the arguments of a program before each execution: the results of a
// failed program have no buffers, and using one would dereference null.
template <typename DataPtrs>
void CheckHaveValues(const DataPtrs& arguments) {
  if (CheckedExecution::InThisThread()) return;
  CountLoss();
  size_t index = 0;
  for (const auto& argument : arguments) {
    if (!argument->HasValue()) {
      ThrowNoValue("argument " + std::to_string(index) + " of a program",
                   *argument);
    }
    ++index;
  }
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_FAILURES_H_
