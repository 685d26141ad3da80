// Dispatcher kernels, without Python, of operators that are one custom call
// each: the checked and encoded call is remembered for arguments of the same
// kind.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DISPATCHER_KERNELS_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DISPATCHER_KERNELS_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

// Adds the functions that register these kernels, and the class PreparedCall,
// to `module`.
void DefineDispatcherKernels(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DISPATCHER_KERNELS_H_
