// Interposes on PyInit__XLAC: the module torch_xla._XLAC is the upstream
// binary's, with its custom-call functions and some others replaced.
//
// The wheel contains the upstream binary, unmodified, as
// torch_xla/lib/_XLAC.so, and this library under the name that Python imports.
// The upstream binary is a dependency of this library: it is loaded before the
// code here runs, and comes after this library in symbol lookup.
#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <exception>
#include <string>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/python/bindings.h"
#include "torch_xla_ext/csrc/runtime_fixes/daemon_threads.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"
#include "torch_xla_ext/csrc/runtime_fixes/pending_values.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

// Whether torch_xla.experimental.eager_mode is on. Upstream keeps the flag in
// XLAGraphExecutor, whose members are not declared in abi/; the only way to set
// it is the Python function that DefineEagerMode replaces.
bool use_eager_mode = false;

void DefineEagerMode(py::module_& module, const py::object& upstream_set) {
  module.def("_set_use_eager_mode", [upstream_set](bool enable) {
    upstream_set(enable);
    use_eager_mode = enable;
  });
}

// Tensors keep values that dropping everything pending would lose.
void DefineClearPendingIrs(py::module_& module,
                           const py::object& upstream_clear) {
  module.def("_clear_pending_irs", [upstream_clear](const std::string& device) {
    KeepShardedValues();
    upstream_clear(device);
  });
}

// At exit, Python waits for the devices' work, except if another process is
// lost.
void DefinePrepareToExit(py::module_& module,
                         const py::object& upstream_prepare) {
  module.def("_prepare_to_exit", [upstream_prepare] {
    if (!EndIfLost()) upstream_prepare();
  });
}

// PyInit__XLAC of the upstream binary, which is in `lib` next to this library.
PyObject* InitUpstreamModule() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&InitUpstreamModule), &info);
  std::string path = info.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "torch_xla/lib/_XLAC.so";
  void* upstream = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* init = upstream == nullptr ? nullptr : dlsym(upstream, "PyInit__XLAC");
  if (init == nullptr) {
    const char* reason = dlerror();
    PyErr_Format(
        PyExc_ImportError,
        "torch_xla's own binary cannot be loaded from %s: %s; reinstall "
        "the torch_xla wheel",
        path.c_str(), reason == nullptr ? "it is missing" : reason);
    return nullptr;
  }
  return reinterpret_cast<PyObject* (*)()>(init)();
}

// Removes the upstream function `name` from the module and returns it:
// otherwise pybind11 would treat a definition of the same name as another
// overload.
py::object Take(py::module_& module, const char* name) {
  py::object function = module.attr(name);
  py::delattr(module, name);
  return function;
}

}  // namespace
}  // namespace torch_xla_ext

bool torch_xla::XLAGraphExecutor::UseEagerMode() {
  return torch_xla_ext::use_eager_mode;
}

extern "C" PyObject* PyInit__XLAC() {
  namespace py = pybind11;
  PyObject* upstream_module = torch_xla_ext::InitUpstreamModule();
  if (upstream_module == nullptr) return nullptr;
  auto module = py::reinterpret_steal<py::module_>(upstream_module);
  try {
    using torch_xla_ext::Take;
    torch_xla_ext::DefineEagerMode(module, Take(module, "_set_use_eager_mode"));
    torch_xla_ext::DefineClearPendingIrs(module,
                                         Take(module, "_clear_pending_irs"));
    torch_xla_ext::DefinePrepareToExit(module,
                                       Take(module, "_prepare_to_exit"));
    Take(module, "_xla_gpu_custom_call");
    Take(module, "_xla_custom_call");
    Take(module, "_xla_register_custom_call_target");
    torch_xla_ext::DefineFunctions(module);
    torch_xla_ext::KeepDaemonThreadsAtExit();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  return module.release().ptr();
}
