// Bindings for registering and listing targets.
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>

#include "torch_xla_ext/csrc/pjrt_shim/targets.h"
#include "torch_xla_ext/csrc/python/subjects.h"
#include "torch_xla_ext/csrc/registry/registration.h"
#include "torch_xla_ext/csrc/registry/static_kernels.h"
#include "torch_xla_ext/csrc/registry/text.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

constexpr char kRegisterDoc[] = R"doc(
Registers a function as the custom-call target `name`.

Args:
  name: the name by which calls refer to the function.
  capsule: holds the address of a function of XLA's untyped ABI, or of an XLA FFI
    handler.
  platform: "CUDA" or "Host" (the CPU).
  api_version: the function's API: 0, untyped; 1, an FFI handler.

If the name is already registered, the function replaces the earlier one in
calls that are traced from then on.

Raises:
  ValueError: an unknown platform or version, or an empty name.
  RuntimeError: XLA or the GPU plugin refuses the target.
)doc";

}  // namespace

void DefineRegistry(py::module_& module) {
  module.def(
      "_xla_register_custom_call_target",
      [](const std::string& name, const py::capsule& capsule,
         const std::string& platform, int api_version) {
        RegisterTarget(name, capsule.get_pointer(), platform,
                       ParseTargetApi(api_version));
      },
      py::arg("name"), py::arg("capsule"), py::arg("platform"),
      py::arg("api_version") = static_cast<int>(TargetApi::kUntyped),
      kRegisterDoc);

  module.def(
      "_xla_register_ffi_handlers",
      [](const std::string& name, uintptr_t instantiate, uintptr_t prepare,
         uintptr_t initialize, uintptr_t execute, uintptr_t record,
         const std::string& platform, bool command_buffer_compatible) {
        TargetFunctions functions;
        functions.instantiate = reinterpret_cast<void*>(instantiate);
        functions.prepare = reinterpret_cast<void*>(prepare);
        functions.initialize = reinterpret_cast<void*>(initialize);
        functions.execute = reinterpret_cast<void*>(execute);
        functions.record = reinterpret_cast<void*>(record);
        functions.command_buffer_compatible = command_buffer_compatible;
        RegisterTarget(name, functions, platform, TargetApi::kFfi);
      },
      py::arg("name"), py::arg("instantiate"), py::arg("prepare"),
      py::arg("initialize"), py::arg("execute"), py::arg("record"),
      py::arg("platform"), py::arg("command_buffer_compatible"),
      "Registers the handlers of an FFI target's stages, by their addresses, "
      "with the errors of _xla_register_custom_call_target.");

  module.def(
      "_xla_register_ffi_type",
      [](const std::string& name, uintptr_t type_id, uintptr_t deleter,
         const std::string& platform) {
        RegisterFfiType(name, reinterpret_cast<XLA_FFI_TypeId*>(type_id),
                        reinterpret_cast<pjrt_shim::Deleter*>(deleter),
                        platform);
      },
      py::arg("name"), py::arg("type_id"), py::arg("deleter"),
      py::arg("platform"),
      "Registers a type of handlers' states, by the address of its "
      "XLA_FFI_TypeId, to which the id is written. The deleter may be 0.");

  module.def(
      "_xla_registered_custom_call_targets",
      [](const std::string& platform, const std::string& api) {
        return RegisteredTargets(platform, ParseTargetApi(api));
      },
      py::arg("platform"), py::arg("api") = "untyped");

  module.def(
      "_xla_current_custom_call_target",
      [](const std::string& name, const std::string& platform,
         const std::string& api) {
        return CurrentName(name, platform, ParseTargetApi(api));
      },
      py::arg("name"), py::arg("platform"), py::arg("api"));

  module.def(
      "_xla_has_custom_call_target",
      [](const std::string& name, const std::string& platform,
         const std::string& api) {
        return CurrentFunction(name, platform, ParseTargetApi(api)) != nullptr;
      },
      py::arg("name"), py::arg("platform"), py::arg("api"));

  module.def(
      "_xla_default_custom_call_api",
      [](const std::string& name, const std::string& platform) {
        return DefaultApi(name, platform) == TargetApi::kFfi ? "ffi"
                                                             : "untyped";
      },
      py::arg("name"), py::arg("platform"));

  module.def(
      "_xla_custom_call_function",
      [](const std::string& name, const std::string& platform,
         const std::string& api) {
        return Described(CurrentFunction(name, platform, ParseTargetApi(api)));
      },
      py::arg("name"), py::arg("platform"), py::arg("api"));

  module.def("_xla_kernel_schemas", &StaticKernelSchemas);
  module.def("_xla_kernel_sizes", &StaticKernelSizes);

  module.def("_xla_capture_registrations", &NumRegistrations);
}

}  // namespace torch_xla_ext
