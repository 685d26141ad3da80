// Starts autograd's threads for XLA devices. Autograd counts the devices of all
// types at a process's first backward(). If torch_xla has not created its
// client by then, autograd finds no XLA devices and starts no threads for them,
// and each later backward() of XLA tensors fails an assertion in PyTorch
// (device_ready_queues_).
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_AUTOGRAD_THREADS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_AUTOGRAD_THREADS_H_

namespace torch_xla_ext {

// Starts these threads if autograd has already counted and found no XLA device.
// Call this when the client has been created.
void StartAutogradThreads();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_AUTOGRAD_THREADS_H_
