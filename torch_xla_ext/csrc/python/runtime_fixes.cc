// Bindings for pending values, the state of random numbers and the settings of
// precision.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>
#include <unordered_set>
#include <vector>

#include "torch_xla_ext/csrc/python/subjects.h"
#include "torch_xla_ext/csrc/runtime_fixes/buffer_donation.h"
#include "torch_xla_ext/csrc/runtime_fixes/pending_values.h"
#include "torch_xla_ext/csrc/runtime_fixes/precision_settings.h"
#include "torch_xla_ext/csrc/runtime_fixes/python_dispatch.h"
#include "torch_xla_ext/csrc/runtime_fixes/random_seed.h"
#include "torch_xla_ext/csrc/runtime_fixes/random_state.h"
#include "torch_xla_ext/csrc/runtime_fixes/thread_trace.h"
#include "torch_xla_ext/csrc/runtime_fixes/unbounded_graph.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

namespace py = pybind11;

void DefineRuntimeFixes(py::module_& module) {
  FunctionalizeAfterPython();

  module.def(
      "_xla_is_read_by_pending_values",
      [](const std::vector<at::Tensor>& tensors) {
        std::unordered_set<const torch::lazy::BackendData*> data;
        for (const at::Tensor& tensor : tensors) {
          const auto xla_tensor = torch_xla::bridge::TryGetXlaTensor(tensor);
          if (xla_tensor) data.insert(xla_tensor->GetXlaData().get());
        }
        const py::gil_scoped_release without_gil;
        return !ReadByPendingValues(data, torch_xla::bridge::GetCurrentDevice())
                    .empty();
      },
      py::arg("tensors"));

  module.def("_xla_has_live_tensors", [] {
    return !torch_xla::XLAGraphExecutor::Get()
                ->GetLiveTensors(/*device=*/nullptr)
                .empty();
  });

  module.def("_xla_are_in_manual_region",
             [](const std::vector<at::Tensor>& tensors) {
               return AreInManualRegion(tensors);
             });

  module.def("_xla_pause_computing_pending_values",
             &PauseComputingPendingValues);
  module.def("_xla_compute_pending_values", &ComputePendingValues,
             py::call_guard<py::gil_scoped_release>());
  module.def("_xla_find_pending_step", [](const at::Tensor& updated) {
    const torch::PyWarningHandler warnings;
    FindPendingStep(updated);
  });

  module.def("_xla_seed_all_devices", &SeedAllDevices, py::arg("seed"),
             py::call_guard<py::gil_scoped_release>());

  module.def("_xla_precision_settings", [] {
    const Precisions settings = PrecisionSettings();
    return std::tuple(settings.float32_product, settings.float32_convolution,
                      settings.other);
  });

  py::class_<ThreadTrace>(module, "_XlaThreadTrace")
      .def(py::init<>())
      .def("end", &ThreadTrace::End, py::arg("keeps"),
           py::call_guard<py::gil_scoped_release>());

  py::class_<RandomState>(module, "_XlaRandomState")
      .def(py::init<>())
      .def("seed", &RandomState::Seed)
      .def("restore", &RandomState::RestoreValue)
      .def("restore", &RandomState::Restore, py::arg("seed"));
}

}  // namespace torch_xla_ext
