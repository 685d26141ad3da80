// Where a device's random numbers stand, kept as a value of the program.
//
// xm.get_rng_state() returns a number, which the host computes. A program that
// sets it has it as another input, which a captured step would take for the
// seed that changes with each step.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_STATE_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_STATE_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

// Defines the class _XlaRandomState.
void DefineRandomState(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_STATE_H_
