// Autograd counts the devices of all types at the first backward() of a
// process. If torch_xla has not made its client by then, it has none, and
// autograd starts no thread for them: each later backward() of XLA tensors
// fails an assertion of PyTorch (device_ready_queues_).
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_AUTOGRAD_THREADS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_AUTOGRAD_THREADS_H_

namespace torch_xla_ext {

// Starts these threads, if autograd has counted already and found no device.
// Call this when the client has been made.
void StartAutogradThreads();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_AUTOGRAD_THREADS_H_
