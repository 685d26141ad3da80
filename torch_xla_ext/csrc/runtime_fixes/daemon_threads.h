// Lets a process end while its daemon threads still compute.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DAEMON_THREADS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DAEMON_THREADS_H_

namespace torch_xla_ext {

// While Python finalizes, before version 3.14, a daemon thread that takes the
// GIL ends with pthread_exit, which unwinds its stack. The destructors that
// take the GIL (upstream's NoGilSection, pybind11's gil_scoped_release) are
// noexcept, so std::terminate would abort the process after a successful
// program. From now on such a thread sleeps until the process has ended, as in
// Python 3.14.
void KeepDaemonThreadsAtExit();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DAEMON_THREADS_H_
