// Bindings for process-wide state: the environment, log handlers, and the loss
// of another process.
#include <torch/csrc/utils/pybind.h>

#include "torch_xla_ext/csrc/python/subjects.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

// Once five calls of a function of torch.compile(backend="openxla") had the
// same shardings, torch_xla no longer compares them, and runs that program for
// any sharding: each device then mistakes its shard for another. This variable
// sets the number of calls for which torch_xla compares.
void AlwaysCompareShardings() {
  py::module_::import("os").attr("environ").attr("setdefault")(
      "XLA_DYNAMO_INPUT_SHARDING_CHECK_THRESHOLD", "1000000000000");
}

// The handlers that the program has given the root logger:
// torch_xla_ext_startup.upstream_fixes.root_logger removes those that torch_xla
// adds. Python imports this module before torch_xla's other modules.
void DefineRootLogHandlers(py::module_& module) {
  const py::object root = py::module_::import("logging").attr("root");
  module.attr("_root_log_handlers") = root.attr("handlers").attr("copy")();
}

}  // namespace

void DefineProcess(py::module_& module) {
  module.def("_xla_lost_process", &LostProcess);
  DefineRootLogHandlers(module);
  AlwaysCompareShardings();
}

}  // namespace torch_xla_ext
