// The functions and classes of the Python module _XLAC that implement
// torch_xla_ext.capture.
#ifndef TORCH_XLA_EXT_CSRC_PYTHON_GRAPH_H_
#define TORCH_XLA_EXT_CSRC_PYTHON_GRAPH_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

void DefineGraph(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_PYTHON_GRAPH_H_
