// Waiting without Python's global interpreter lock. A program may run a
// function of Python, as a custom call or an operator of PyTorch: who waits for
// it with the GIL waits for ever. Upstream releases it in most of its bindings,
// but not in all, and not where a lock of the device is taken
// (_run_cached_graph, by which torch.compile runs a program).
#ifndef TORCH_XLA_EXT_CSRC_CALLS_WITHOUT_GIL_H_
#define TORCH_XLA_EXT_CSRC_CALLS_WITHOUT_GIL_H_

// As Python.h, which upstream's runtime is compiled without.
extern "C" {
struct _ts;  // PyThreadState
int PyGILState_Check(void);
_ts* PyEval_SaveThread(void);
void PyEval_RestoreThread(_ts* state);
}

namespace torch_xla_ext {

// Releases the GIL for its lifetime, if this thread has it.
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

#endif  // TORCH_XLA_EXT_CSRC_CALLS_WITHOUT_GIL_H_
