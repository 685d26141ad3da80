#include "torch_xla_ext/csrc/runtime_fixes/failures.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>

namespace torch_xla_ext {
namespace {

// Null unless the client failed. Never deleted.
std::atomic<const std::string*> client_failure{nullptr};

thread_local bool execution_is_checked = false;
std::atomic<uint64_t> num_losses{0};

}  // namespace

bool ClientFailed() { return client_failure != nullptr; }

void SetClientFailure(const std::string& text) {
  // pybind11 appends the Python traceback of an exception.
  client_failure = new std::string(text.substr(0, text.find("\n\nAt:\n")));
}

void ThrowClientFailure() {
  if (const std::string* text = client_failure) throw std::runtime_error(*text);
}

void FailInForkedChildren() {
  static const int is_set = pthread_atfork(nullptr, nullptr, [] {
    SetClientFailure(
        "XLA cannot be used in this process, because it was forked from one "
        "that had used XLA: start processes by multiprocessing's \"spawn\", or "
        "before the first use of XLA");
  });
  static_cast<void>(is_set);
}

CheckedExecution::CheckedExecution() { execution_is_checked = true; }

CheckedExecution::~CheckedExecution() { execution_is_checked = false; }

bool CheckedExecution::InThisThread() { return execution_is_checked; }

uint64_t NumLosses() { return num_losses; }

void CountLoss() { ++num_losses; }

void ThrowNoValue(const std::string& what,
                  const torch::lazy::BackendData& data) {
  throw std::runtime_error(
      what + " on " + data.device().toString() +
      " has no value: the program that should have computed it failed, and its "
      "error was raised before this one");
}

}  // namespace torch_xla_ext
