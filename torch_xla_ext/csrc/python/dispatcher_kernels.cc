// Bindings for dispatcher kernels of operators that are one custom call each.
#include "torch_xla_ext/csrc/custom_call/dispatcher_kernels.h"

#include <torch/csrc/utils/pybind.h>

#include "torch_xla_ext/csrc/python/subjects.h"

namespace torch_xla_ext {

namespace py = pybind11;

void DefineDispatcherKernels(py::module_& module) {
  py::class_<DispatcherKernel>(module, "_XlaOperatorKernel");

  module.def(
      "_xla_register_operator", &RegisterXlaKernel, py::arg("name"),
      py::arg("overload"), py::arg("prepare"), py::arg("run"),
      py::arg("environment"),
      "Registers an operator's kernel for XLA tensors. prepare(*args) checks "
      "the arguments and returns a prepared call, as _xla_prepare_custom_call "
      "does. It is cached for equal arguments and values of the environment "
      "variables `environment`; if that is None, nothing is cached. If prepare "
      "returns None, run(*args) computes the results. The operands are the "
      "tensors among the arguments, in order.");

  module.def(
      "_xla_register_operator_autograd", &RegisterAutogradKernel,
      py::arg("name"), py::arg("overload"), py::arg("differentiate"),
      py::arg("written"),
      "Registers an operator's kernel for Autograd: differentiate(*args) is "
      "called if an argument has a gradient or a tangent. `written` are the "
      "indices of the arguments that the operator writes to.");

  module.def(
      "_xla_register_operator_in_place", &RegisterInPlaceKernel,
      py::arg("name"), py::arg("overload"), py::arg("functional"),
      py::arg("run"), py::arg("written"),
      "Registers the Functionalize kernel of an operator that writes to some "
      "of its arguments. These receive the results of `functional`. If an "
      "argument is not a plain XLA tensor, run(*args) is called instead.");

  module.def("_xla_add_reference_blocks", &AddReferenceBlocks, py::arg("count"),
             "Changes the count of open reference blocks. While there are any, "
             "operators ask Python whether a reference implementation computes "
             "a call.");
}

}  // namespace torch_xla_ext
