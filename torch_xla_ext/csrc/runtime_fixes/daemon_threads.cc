#include "torch_xla_ext/csrc/runtime_fixes/daemon_threads.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>

extern "C" int _Py_IsFinalizing(void);  // as in Python.h

namespace torch_xla_ext {
namespace {

std::terminate_handler previous_handler = nullptr;

// pthread_exit is no exception: std::current_exception() is null.
bool IsEndingDaemonThread() {
  return _Py_IsFinalizing() != 0 && gettid() != getpid() &&
         std::current_exception() == nullptr;
}

[[noreturn]] void Terminate() {
  while (IsEndingDaemonThread()) pause();
  previous_handler();
  std::abort();
}

}  // namespace

void KeepDaemonThreadsAtExit() {
  previous_handler = std::set_terminate(Terminate);
}

}  // namespace torch_xla_ext
