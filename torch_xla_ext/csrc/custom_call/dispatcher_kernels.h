// Dispatcher kernels of operators that are one custom call each. They run
// without Python: the checked and encoded call is cached for arguments of the
// same kind.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DISPATCHER_KERNELS_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DISPATCHER_KERNELS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_xla_ext {

class PreparedCalls;

// A registered kernel. Deregisters it on destruction, like
// torch.library.Library.
struct DispatcherKernel {
  c10::RegistrationHandleRAII handle;
  // The prepared calls of a kernel for XLA tensors; null for other kernels.
  std::shared_ptr<PreparedCalls> calls;
};

// The kernel for XLA tensors of the operator `name`.`overload`. `prepare`
// checks an operator's arguments and returns a PreparedCall, or None; then
// `run` computes the results. Calls are cached by their arguments and the
// values of the environment variables `environment`; without `environment`,
// they are not.
DispatcherKernel RegisterXlaKernel(
    const std::string& name, const std::string& overload,
    pybind11::object prepare, pybind11::object run,
    std::optional<std::vector<std::string>> environment);

// The kernel for Autograd, which calls `differentiate` if an argument has a
// gradient or a tangent. `written` are the indices of the arguments that the
// operator writes to.
DispatcherKernel RegisterAutogradKernel(const std::string& name,
                                        const std::string& overload,
                                        pybind11::object differentiate,
                                        std::vector<size_t> written);

// The kernel for Functionalize of an operator that writes to its arguments
// `written`, which receive the results of `functional`, a kernel for XLA
// tensors. `run` handles calls whose arguments are not plain XLA tensors.
// Throws c10::ValueError if `functional` is another kind of kernel.
DispatcherKernel RegisterInPlaceKernel(const std::string& name,
                                       const std::string& overload,
                                       const DispatcherKernel& functional,
                                       pybind11::object run,
                                       std::vector<size_t> written);

// Changes the number of open debug.use_reference blocks, in all threads. While
// there are any, Python decides whether a reference computes a call.
void AddReferenceBlocks(int count);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DISPATCHER_KERNELS_H_
