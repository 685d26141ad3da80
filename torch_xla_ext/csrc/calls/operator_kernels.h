// Dispatcher kernels of operators that are one custom call each, without
// Python: what was checked and encoded for arguments like these is remembered.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_OPERATOR_KERNELS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_OPERATOR_KERNELS_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

// Adds the functions that register them to `module`, and its class
// PreparedCall.
void DefineOperatorKernels(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_OPERATOR_KERNELS_H_
