// What follows a failure, in the places where upstream's torch_xla goes on as
// if there had been none. The front library and patches/ call these.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_FAILURES_H_
#define TORCH_XLA_EXT_CSRC_CALLS_FAILURES_H_

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/core/ir.h>
#include <torch/csrc/lazy/core/util.h>

#include <cstddef>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/calls/without_gil.h"

namespace torch_xla_ext {

// The error with which the client could not be made, such as that there is no
// GPU. torch_xla makes its client once, and aborts at the next use of one that
// could not be made, the end of the process included. So the error is kept:
// each later use raises it again, and the end of the process sees no client.
bool ClientFailed();
void SetClientFailure(const std::string& text);
// Throws std::runtime_error with that text, if there is one.
void ThrowClientFailure();

// The client, which `make` makes at the first call.
template <typename Make>
decltype(auto) MakeClient(Make make) {
  ThrowClientFailure();
  try {
    return make();
  } catch (const std::exception& error) {
    SetClientFailure(error.what());
    throw;
  }
}

// Waits for an execution by `wait`, which throws its error, without Python's
// GIL. torch_xla also leaves the error with the locks of the execution's
// devices, `unlockers`, for the next step on them, which has nothing to do with
// it. Here the caller is the one reader of the error.
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

// Returns sync(), which takes from `tensors` what they are computed from,
// before it compiles the program. If it throws, a tensor that got no value
// would have neither: all that was pending would be lost, and each later sync()
// would fail too. Such a tensor gets its operations back.
template <typename Tensors, typename Sync>
decltype(auto) KeepPending(const Tensors& tensors, Sync sync) {
  struct Pending {
    typename Tensors::value_type tensor;
    torch::lazy::Value value;
    bool is_cloned;
  };
  std::vector<Pending> pending;
  for (const auto& tensor : tensors) {
    const auto& data = tensor->data();
    if (data->handle == nullptr && data->ir_value) {
      pending.push_back({tensor, data->ir_value, data->is_cloned});
    }
  }
  try {
    return sync();
  } catch (...) {
    for (Pending& lost : pending) {
      const auto& data = lost.tensor->data();
      if (data->handle == nullptr && !data->ir_value && !data->tensor_data) {
        data->ir_value = std::move(lost.value);
        ++data->generation;
        // A clone of a value must not share it: the other one may be donated.
        data->is_cloned = lost.is_cloned;
      }
    }
    throw;
  }
}

// Throws std::runtime_error, which names the argument.
[[noreturn]] void ThrowNoValue(size_t index,
                               const torch::lazy::BackendData& argument);

// Checks the arguments of a program: the results of an execution that failed
// have no buffer, and to use one is a null dereference.
template <typename DataPtrs>
void CheckHaveValues(const DataPtrs& arguments) {
  size_t index = 0;
  for (const auto& argument : arguments) {
    if (!argument->HasValue()) ThrowNoValue(index, *argument);
    ++index;
  }
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_FAILURES_H_
