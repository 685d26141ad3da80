// Bindings for captured and compiled programs, and the state that they read and
// write.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/strides.h"
#include "torch_xla_ext/csrc/graph/cuda_streams.h"
#include "torch_xla_ext/csrc/graph/program.h"
#include "torch_xla_ext/csrc/graph/python_guard.h"
#include "torch_xla_ext/csrc/graph/saved_state.h"
#include "torch_xla_ext/csrc/graph/shared_memory.h"
#include "torch_xla_ext/csrc/graph/storage.h"
#include "torch_xla_ext/csrc/graph/uncompiled_program.h"
#include "torch_xla_ext/csrc/python/subjects.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;
using graph::IsFunctionalXlaTensor;
using graph::Program;
using graph::ProgramOnSharedMemory;
using graph::SavedState;
using graph::Source;
using graph::StorageOf;
using graph::UncompiledProgram;

// The strides that the tensor has in PyTorch; nothing if it is row-major.
std::optional<std::vector<int64_t>> StridesOf(const at::Tensor& tensor) {
  if (!graph::HasOwnValues(tensor)) return std::nullopt;
  const auto strided = aten_overrides::WithStrides(tensor);
  if (!strided || strided->is_contiguous()) return std::nullopt;
  return strided->strides().vec();
}

// Returns the properties of the arguments, other than their values, on which a
// program depends; and the indices of arguments that are views and share their
// storage with no other argument.
std::pair<py::bytes, std::vector<size_t>> Signature(
    const std::vector<at::Tensor>& arguments) {
  std::unordered_map<const void*, size_t> first;
  std::unordered_map<const void*, size_t> uses;
  for (const at::Tensor& tensor : arguments) ++uses[StorageOf(tensor)];
  std::string text;
  std::vector<size_t> views;
  auto append = [&text](int64_t value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor& tensor = arguments[i];
    const void* const storage = StorageOf(tensor);
    append(static_cast<int64_t>(tensor.scalar_type()));
    append((tensor.requires_grad() ? 1 : 0) | (tensor.is_inference() ? 2 : 0) |
           (tensor.is_leaf() ? 4 : 0) |
           (tensor.is_leaf() && tensor.grad().defined() ? 8 : 0));
    append(first.emplace(storage, i).first->second);
    append(tensor.dim());
    for (int64_t size : tensor.sizes()) append(size);
    const bool is_view = !at::functionalization::impl::isBaseTensor(tensor);
    append(is_view);
    if (!is_view) continue;
    if (uses[storage] == 1) {
      views.push_back(i);
      const auto strides = StridesOf(tensor);
      append(strides.has_value());
      if (strides) {
        for (int64_t stride : *strides) append(stride);
      }
      continue;
    }
    const auto strided = aten_overrides::WithStrides(tensor);
    if (!strided) {
      throw py::value_error(
          "tensor argument " + std::to_string(i) +
          " is a view that PyTorch does not have, such as view() of a "
          "transposed tensor, and shares memory with another argument: pass a "
          "clone() of it, or create it inside");
    }
    for (int64_t stride : strided->strides()) append(stride);
    append(strided->storage_offset());
  }
  return {py::bytes(text), std::move(views)};
}

// The function that made a view from its base, and can make it from another
// base. It owns neither tensor.
using View = torch::autograd::ViewFunc;

std::unique_ptr<View> ViewOf(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (meta == nullptr || !meta->has_bw_view() ||
      !meta->get_backward_view().has_view_fn()) {
    return nullptr;
  }
  return meta->get_backward_view().view_fn().clone_and_set();
}

torch::lazy::hash_t HashOf(const std::string& bytes) {
  torch::lazy::hash_t hash;
  if (bytes.size() != sizeof hash) {
    throw py::value_error("hash must have " + std::to_string(sizeof hash) +
                          " bytes, but has " + std::to_string(bytes.size()));
  }
  std::memcpy(&hash, bytes.data(), bytes.size());
  return hash;
}

std::vector<Source> SourcesOf(
    const std::vector<std::pair<int, size_t>>& sources) {
  std::vector<Source> all;
  all.reserve(sources.size());
  for (const auto& [kind, index] : sources) {
    all.push_back({static_cast<Source::Kind>(kind), index});
  }
  return all;
}

Program MakeProgram(
    const std::string& hash, std::string name,
    const std::vector<std::pair<int, size_t>>& parameters,
    std::vector<std::string> names, std::vector<at::Tensor> state,
    std::vector<at::Tensor> constants, std::vector<size_t> written,
    const std::vector<at::Tensor>& outputs, std::vector<int64_t> argument_state,
    const std::vector<std::pair<int, size_t>>& gradients, bool ends_step) {
  Program::Description description;
  description.hash = HashOf(hash);
  description.name = std::move(name);
  description.parameters = SourcesOf(parameters);
  description.names = std::move(names);
  description.state = std::move(state);
  description.constants = std::move(constants);
  description.written = std::move(written);
  for (const at::Tensor& output : outputs) {
    const auto tensor = torch_xla::bridge::TryGetXlaTensor(output);
    xla::Shape shape = torch_xla::GetXlaShape(tensor->GetIrValue());
    xla::LayoutUtil::SetToDefaultLayout(&shape);
    description.outputs.push_back(
        {output.scalar_type(), output.sizes().vec(), std::move(shape)});
  }
  description.argument_state = std::move(argument_state);
  description.replaced_gradients = SourcesOf(gradients);
  description.ends_step = ends_step;
  return Program(std::move(description));
}

void DefineProgram(py::module_& module) {
  py::class_<Program, std::shared_ptr<Program>>(module, "_XlaCapturedProgram")
      .def(py::init(&MakeProgram), py::arg("hash"), py::arg("name"),
           py::arg("parameters"), py::arg("names"), py::arg("state"),
           py::arg("constants"), py::arg("written"), py::arg("outputs"),
           py::arg("argument_state"), py::arg("replaced_gradients"),
           py::arg("ends_step"))
      .def("find_computation", &Program::FindComputation)
      .def("arguments_to_copy", &Program::ArgumentsToCopy)
      .def("run_unless_copied", &Program::RunUnlessCopied,
           py::call_guard<py::gil_scoped_release>())
      .def("matches", &Program::Matches)
      .def("cache_shardings", &Program::CacheShardings)
      .def("run_if_matches", &Program::RunIfMatches, py::arg("arguments"),
           py::arg("here"))
      .def(
          "run",
          [](Program& program, const std::vector<at::Tensor>& arguments) {
            return program.Run(arguments);
          },
          py::call_guard<py::gil_scoped_release>());
  py::class_<UncompiledProgram>(module, "_XlaUncompiledProgram")
      .def("compile", &UncompiledProgram::Compile,
           py::call_guard<py::gil_scoped_release>());
  module.def(
      "_xla_capture_lower",
      [](const std::vector<at::Tensor>& tensors, const std::string& hash) {
        return UncompiledProgram::Of(tensors, HashOf(hash));
      },
      py::call_guard<py::gil_scoped_release>(), py::arg("tensors"),
      py::arg("hash"));
}

void DefineSharedMemory(py::module_& module) {
  py::class_<ProgramOnSharedMemory>(module, "_XlaProgramOnSharedMemory")
      .def(py::init<std::shared_ptr<Program>, c10::Device>(),
           py::arg("program"), py::arg("device"))
      .def("arguments_to_copy", &ProgramOnSharedMemory::ArgumentsToCopy)
      .def("run", &ProgramOnSharedMemory::Run,
           py::call_guard<py::gil_scoped_release>(), py::arg("arguments"),
           py::arg("stream"));
  module.def("_xla_shares_memory", &graph::SharesMemory);
  module.def("_xla_is_row_major", &graph::IsRowMajor);
  module.def("_xla_views", &graph::ViewsOf,
             py::call_guard<py::gil_scoped_release>());
  module.def("_xla_is_compute_stream_known", &graph::IsComputeStreamKnown);
  module.attr("_xla_compute_stream_target") = graph::kComputeStreamTarget;
}

void DefineState(py::module_& module) {
  py::class_<graph::PythonGuard>(module, "_XlaPythonGuard")
      .def(py::init<const py::list&>())
      .def("is_same", &graph::PythonGuard::IsSame);

  py::class_<SavedState>(module, "_XlaSavedState")
      .def(py::init<>())
      .def("add", &SavedState::Add, py::call_guard<py::gil_scoped_release>())
      .def("add_all", &SavedState::AddAll,
           py::call_guard<py::gil_scoped_release>())
      .def("data_address", &SavedState::DataAddress)
      .def("is_written", &SavedState::IsWritten)
      .def("before", &SavedState::Before)
      .def("restore", &SavedState::Restore)
      .def_property_readonly("first_new_id", &SavedState::first_new_id);

  py::class_<View>(module, "_XlaView").def("__call__", &View::operator());
  module.def("_xla_capture_view", &ViewOf);
  module.def("_xla_capture_signature", &Signature);
  module.def("_xla_capture_place", [](const at::Tensor& tensor) {
    const auto strided = aten_overrides::WithStrides(tensor);
    const at::Tensor& place = strided ? *strided : tensor;
    return std::make_tuple(place.sizes().vec(), place.strides().vec(),
                           strided ? place.storage_offset() : 0);
  });
  module.def("_xla_capture_is_supported", &IsFunctionalXlaTensor);
  module.def("_xla_capture_split", [](const py::tuple& values) {
    py::list tensors, others;
    bool are_supported = true;
    for (const py::handle value : values) {
      const bool is_tensor = THPVariable_Check(value.ptr());
      (is_tensor ? tensors : others).append(value);
      are_supported = are_supported &&
                      (!is_tensor ||
                       IsFunctionalXlaTensor(THPVariable_Unpack(value.ptr())));
    }
    return py::make_tuple(std::move(tensors), std::move(others), are_supported);
  });
  module.def(
      "_xla_capture_is_used_by_python",
      [](py::handle tensor) {
        return !reinterpret_cast<THPVariable*>(tensor.ptr())
                    ->cdata.unsafeIsBorrowed();
      },
      "Returns whether a Python object, other than a weak reference, refers to "
      "the tensor. If not, C++ owns it, and another thread, such as "
      "autograd's, may be destroying it. Unpacking it would then destroy it a "
      "second time.");
  module.def("_xla_capture_is_view", [](const at::Tensor& tensor) {
    return !at::functionalization::impl::isBaseTensor(tensor);
  });
  module.def("_xla_capture_has_own_values", &graph::HasOwnValues);
  module.def(
      "_xla_strides",
      [](const py::tuple& values)
          -> std::optional<std::vector<std::optional<std::vector<int64_t>>>> {
        std::optional<std::vector<std::optional<std::vector<int64_t>>>> all;
        for (size_t i = 0; i < values.size(); ++i) {
          PyObject* const value = PyTuple_GET_ITEM(values.ptr(), i);
          if (!THPVariable_Check(value)) continue;
          const at::Tensor& tensor = THPVariable_Unpack(value);
          if (!IsFunctionalXlaTensor(tensor)) continue;
          auto strides = StridesOf(tensor);
          if (!strides) continue;
          if (!all) all.emplace(values.size());
          (*all)[i] = std::move(strides);
        }
        return all;
      });
  module.def("_xla_set_strides", [](const at::Tensor& copy,
                                    std::vector<int64_t> strides) {
    aten_overrides::StridesOfCopies::Get().Set(copy, std::move(strides));
  });
  module.def("_xla_capture_storage", [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(StorageOf(tensor));
  });
  module.def("_xla_capture_base", [](const at::Tensor& tensor) {
    StorageOf(tensor)->apply_updates();
    return StorageOf(tensor)->base();
  });
  module.def("_xla_capture_data_address", [](const at::Tensor& tensor) {
    const auto xla_tensor = torch_xla::bridge::TryGetXlaTensor(tensor);
    return xla_tensor == nullptr
               ? uintptr_t{0}
               : reinterpret_cast<uintptr_t>(graph::DataOf(xla_tensor).get());
  });
  module.def(
      "_xla_capture_transfer",
      [](const at::Tensor& tensor) {
        return graph::Transfer(torch_xla::bridge::TryGetXlaTensor(tensor));
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("_xla_capture_parameter_id", [](const at::Tensor& tensor) {
    using DeviceDataInfo = torch::lazy::LazyGraphExecutor::DeviceDataInfo;
    const auto xla_tensor = torch_xla::bridge::TryGetXlaTensor(tensor);
    const auto* info =
        static_cast<const DeviceDataInfo*>(graph::DataOf(xla_tensor)->info());
    return info == nullptr ? int64_t{-1} : info->tensor_id;
  });
  module.def(
      "_xla_capture_set_alias",
      [](const at::Tensor& tensor, int64_t id) {
        const auto xla_tensor = torch_xla::bridge::TryGetXlaTensor(tensor);
        return std::exchange(xla_tensor->data()->alias_id, id);
      },
      "Declares that the new value of `tensor` is written to the buffer of the "
      "parameter with this id (runtime_fixes/buffer_donation.h). Returns the "
      "previous id.",
      py::arg("tensor"), py::arg("id"));
}

}  // namespace

void DefineGraph(py::module_& module) {
  DefineProgram(module);
  DefineSharedMemory(module);
  DefineState(module);
}

}  // namespace torch_xla_ext
