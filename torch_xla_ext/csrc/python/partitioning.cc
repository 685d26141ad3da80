// Bindings for the partitioner, whose functions are in Python.
#include "torch_xla_ext/csrc/partitioning/partitioning.h"

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/partitioned_call.h"
#include "torch_xla_ext/csrc/python/subjects.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

constexpr char kRegisterPartitionersDoc[] = R"doc(
Registers these functions as the partitioner of calls with `partition`, with XLA
and with the plugin. XLA calls them when it compiles a program for several
devices, in the thread that compiles. Shardings are serialized xla::OpSharding.

Args:
  infer: (partition, operand_shardings) -> the results' sharding, or None.
  propagate: (partition, result_sharding) -> the results' sharding.
  divide: (partition, operand_shardings, result_sharding) -> the call of each
    device, a torch_xla_ext.sharding.DeviceCall.

Raises:
  RuntimeError: the plugin does not accept partitioners.
)doc";

py::object ToPython(const std::optional<std::string>& sharding) {
  if (!sharding) return py::none();
  return py::bytes(*sharding);
}

py::list ToPython(const Shardings& shardings) {
  py::list list;
  for (const auto& sharding : shardings) list.append(ToPython(sharding));
  return list;
}

// Calls `function` with the GIL. A Python exception becomes a
// std::runtime_error with its text.
template <typename Function>
auto CallPython(Function function) {
  const py::gil_scoped_acquire gil;
  try {
    return function();
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(py::str(error.value()).cast<std::string>());
  }
}

DeviceCall ToDeviceCall(const py::object& call) {
  DeviceCall result;
  result.operand_shardings =
      call.attr("operand_shardings").cast<std::vector<std::string>>();
  result.result_sharding = call.attr("result_sharding").cast<std::string>();
  result.operand_shapes =
      call.attr("operand_shapes").cast<std::vector<std::vector<int64_t>>>();
  result.results.shapes =
      call.attr("result_shapes").cast<std::vector<std::vector<int64_t>>>();
  result.results.dtypes =
      call.attr("result_dtypes").cast<std::vector<at::ScalarType>>();
  result.num_traced_results = call.attr("num_traced_results").cast<size_t>();
  result.sums =
      call.attr("sums").cast<std::vector<std::vector<std::vector<int64_t>>>>();
  result.payload = call.attr("payload").cast<std::string>();
  return result;
}

}  // namespace

void DefinePartitioning(py::module_& module) {
  module.def(
      "_xla_register_partitioners",
      [](const py::object& infer, const py::object& propagate,
         const py::object& divide) {
        // XLA may compile until the process ends.
        PyObject* const inferring = py::object(infer).release().ptr();
        PyObject* const propagating = py::object(propagate).release().ptr();
        PyObject* const dividing = py::object(divide).release().ptr();
        PartitionFunctions functions;
        functions.infer = [inferring](const std::string& partition,
                                      const Shardings& operands) {
          return CallPython([&]() -> std::optional<std::string> {
            const py::object sharding =
                py::handle(inferring)(partition, ToPython(operands));
            if (sharding.is_none()) return std::nullopt;
            return sharding.cast<std::string>();
          });
        };
        functions.propagate = [propagating](const std::string& partition,
                                            const std::string& result) {
          return CallPython([&] {
            return py::handle(propagating)(partition, py::bytes(result))
                .cast<std::string>();
          });
        };
        functions.divide =
            [dividing](const std::string& partition, const Shardings& operands,
                       const std::optional<std::string>& result) {
              return CallPython([&] {
                return ToDeviceCall(py::handle(dividing)(
                    partition, ToPython(operands), ToPython(result)));
              });
            };
        RegisterPartitioners(std::move(functions));
      },
      py::arg("infer"), py::arg("propagate"), py::arg("divide"),
      kRegisterPartitionersDoc);

  module.def("_xla_set_lowers_whole_calls", &SetLowersWholeCalls,
             py::arg("lowers"),
             "Sets whether this thread lowers calls in programs for several "
             "devices undivided, under their kernels' names. Use it for a "
             "program that leaves the process.");
}

}  // namespace torch_xla_ext
