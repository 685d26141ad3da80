// Waits without Python's global interpreter lock (GIL). A program may run a
// Python function, as a custom call or a PyTorch operator: a thread that waits
// for the program while holding the GIL waits forever. Upstream releases the
// GIL in most of its bindings, but not in all, and not when it takes a device's
// lock (_run_cached_graph, through which torch.compile runs a program).
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_WITHOUT_GIL_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_WITHOUT_GIL_H_

// Declared as in Python.h, because upstream's runtime is compiled without that
// header.
extern "C" {
struct _ts;  // PyThreadState
int PyGILState_Check(void);
_ts* PyEval_SaveThread(void);
void PyEval_RestoreThread(_ts* state);
}

namespace torch_xla_ext {

// Releases the GIL for its lifetime, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil()
      : state_(PyGILState_Check() == 1 ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  _ts* state_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_WITHOUT_GIL_H_
