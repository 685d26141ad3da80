// The thread that prepares a program for several devices.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_LAUNCH_THREADS_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_LAUNCH_THREADS_H_

namespace torch_xla_ext {

// While it lives, ThreadPool::ParallelFor in this thread wakes no other threads
// for few buffers.
class FewThreads {
 public:
  FewThreads();
  ~FewThreads();
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

 private:
  bool before_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_LAUNCH_THREADS_H_
