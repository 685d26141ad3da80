// The module torch_xla._XLAC: the stock binary's, with its custom calls
// replaced.
//
// The wheel has the stock binary as torch_xla/lib/_XLAC.so, bit for bit, and
// this library under the name that Python imports. Being a dependency of this
// library, the stock binary is loaded before the code here runs, and after it
// in the symbol search.
#include <dlfcn.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/arguments.h"
#include "torch_xla_ext/csrc/custom_call.h"
#include "torch_xla_ext/csrc/direct_call.h"
#include "torch_xla_ext/csrc/gpu_custom_call.h"
#include "torch_xla_ext/csrc/registration.h"
#include "torch_xla_ext/csrc/static_kernels.h"
#include "torch_xla_ext/csrc/text.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

// Upstream's kinds of node.
torch::lazy::OpKind GpuCustomCallKind() {
  static const auto kind = torch::lazy::OpKind::Get("xla::gpu_custom_call");
  return kind;
}
torch::lazy::OpKind CustomCallKind() {
  static const auto kind = torch::lazy::OpKind::Get("xla::custom_call");
  return kind;
}

constexpr char kGpuCustomCallDoc[] = R"doc(
Calls the kernel that is registered as `target` with the buffers of `inputs`.

Args:
  inputs: XLA tensors on one device, at least one.
  payload: bytes or str; the kernel's `opaque`. For a named target it must not
    be a JSON object: XLA:GPU would take it for a configuration of its own.
  output_shapes: a shape for each result.
  output_dtypes: a torch.dtype for each result.
  target: the kernel's name. "triton_kernel_call" is called with XLA's API
    version 2 (STATUS_RETURNING), any other with version 3
    (STATUS_RETURNING_UNIFIED).
  aliases: {output: input}, or None: results that are written into the buffer of
    an input. XLA copies the input first if something else needs it.

Returns:
  A list of XLA tensors, one for each shape. Operands and results are row-major
  when the kernel runs, however the inputs were made.

Raises:
  TypeError, ValueError: at once, for a wrong argument.
  RuntimeError: when the program is compiled, if no such target is registered
    for the device's platform; when its results are read, if the kernel reported
    a failure.
)doc";

constexpr char kCustomCallDoc[] = R"doc(
Calls the target `target` with XLA's API version `api_version` (0 to 4).

As upstream's, but that everything it is given is part of the program's hash:
calls that differ in `backend_config`, `api_version`, `has_side_effect` or
`frontend_attributes` alone are different programs. No layout is constrained.
)doc";

constexpr char kRegisterDoc[] = R"doc(
Registers a function as the custom-call target `name`.

Args:
  name: the name by which calls refer to it.
  capsule: holds the address of a function of XLA's untyped ABI, or of an XLA FFI
    handler.
  platform: "CUDA" or "Host" (the CPU).
  api_version: what the function is: 0, untyped; 1, an FFI handler.

Raises:
  ValueError: an unknown platform or version, an empty name, or a name that is
    registered with another function.
  RuntimeError: XLA or the GPU plugin refuses the target.
)doc";

constexpr char kCallTargetDoc[] = R"doc(
Calls a registered target without XLA, on torch's own tensors.

Args:
  target: the kernel's name.
  platform: "Host", for CPU tensors, or "CUDA".
  operands: contiguous tensors on one device.
  payload: bytes; the kernel's `opaque`.
  results: contiguous tensors on the same device, which the kernel fills.
  stream: for "CUDA", the cudaStream_t as an int; its device is the current one.

Raises:
  ValueError: no such target, or a tensor that is not contiguous or elsewhere.
  RuntimeError: with the kernel's own text, if it reports a failure.
)doc";

// Whether torch_xla.experimental.eager_mode is on. Upstream keeps the flag in a
// class whose layout is not declared here; it is set through one function only,
// DefineEagerMode's.
bool use_eager_mode = false;

void DefineEagerMode(py::module_& module, const py::object& stock_set) {
  module.def("_set_use_eager_mode", [stock_set](bool enable) {
    stock_set(enable);
    use_eager_mode = enable;
  });
}

// The arguments of a call as Python gives them.
struct CallArguments {
  py::handle target;
  py::handle inputs;
  const char* bytes_name;  // what an error calls `bytes`
  py::handle bytes;        // the payload, or the attributes of a typed call
  py::handle output_shapes;
  py::handle output_dtypes;
};

// The same, checked; the target and the bytes are in the config.
struct ParsedCall {
  CustomCallConfig config;
  OutputTypes outputs;
  std::vector<torch_xla::XLATensorPtr> inputs;
};

ParsedCall Parse(const CallArguments& arguments) {
  ParsedCall call;
  call.config.target = ParseTarget(arguments.target);
  const std::string& target = call.config.target;
  call.outputs = ParseOutputTypes(target, arguments.output_shapes,
                                  arguments.output_dtypes);
  call.config.backend_config =
      ParseBytes(target, arguments.bytes_name, arguments.bytes);
  call.inputs = ParseInputs(target, arguments.inputs);
  return call;
}

// For kernels that are told torch's dtypes: makes them those of the buffers.
void UseTorchDTypes(const ParsedCall& call, CustomCallConfig* config) {
  CheckNothingIsNarrowed(config->target, call.inputs, call.outputs);
  for (const torch_xla::XLATensorPtr& input : call.inputs) {
    config->operand_types.push_back(
        torch_xla::MakeXlaPrimitiveType(input->dtype(), &input->GetDevice()));
  }
}

py::list Trace(torch::lazy::OpKind kind, ParsedCall call) {
  std::vector<torch_xla::XLATensorPtr> results;
  {
    // In eager mode this compiles and waits for the device, and a kernel may be
    // a function of Python.
    const py::gil_scoped_release without_gil;
    results = TraceCustomCall(kind, call.inputs, call.outputs,
                              std::move(call.config), use_eager_mode);
  }
  return py::cast(torch_xla::bridge::AtenFromXlaTensors(results));
}

void DefineCustomCalls(py::module_& module) {
  module.def(
      "_xla_gpu_custom_call",
      [](const py::object& inputs, const py::object& payload,
         const py::object& output_shapes, const py::object& output_dtypes,
         const py::object& target, const py::object& aliases) {
        ParsedCall call = Parse(
            {target, inputs, "payload", payload, output_shapes, output_dtypes});
        CustomCallConfig config =
            GpuCustomCallConfig(std::move(call.config.target),
                                std::move(call.config.backend_config));
        // The default target takes what it always took.
        if (config.target != kDefaultGpuCustomCallTarget) {
          CheckGpuPayload(config.target, config.backend_config);
          UseTorchDTypes(call, &config);
        }
        config.aliases =
            ParseAliases(config.target, aliases, inputs, call.outputs);
        call.config = std::move(config);
        return Trace(GpuCustomCallKind(), std::move(call));
      },
      py::arg("inputs"), py::arg("payload"), py::arg("output_shapes"),
      py::arg("output_dtypes"), py::arg("target") = kDefaultGpuCustomCallTarget,
      py::arg("aliases") = py::none(), kGpuCustomCallDoc);

  module.def(
      "_xla_custom_call",
      [](const py::object& inputs, const py::object& target,
         const py::object& output_shapes, const py::object& output_dtypes,
         bool has_side_effect, const py::object& backend_config,
         int api_version,
         std::map<std::string, std::string> frontend_attributes) {
        ParsedCall call = Parse({target, inputs, "backend_config",
                                 backend_config, output_shapes, output_dtypes});
        if (api_version < xla::API_VERSION_UNSPECIFIED ||
            api_version > xla::API_VERSION_TYPED_FFI) {
          throw py::value_error("custom call " + Quoted(call.config.target) +
                                ": api_version must be 0 to 4, but is " +
                                std::to_string(api_version));
        }
        call.config.api_version = api_version;
        call.config.has_side_effect = has_side_effect;
        call.config.frontend_attributes = std::move(frontend_attributes);
        return Trace(CustomCallKind(), std::move(call));
      },
      py::arg("inputs"), py::arg("target"), py::arg("output_shapes"),
      py::arg("output_dtypes"), py::arg("has_side_effect"),
      py::arg("backend_config"), py::arg("api_version"),
      py::arg("frontend_attributes"), kCustomCallDoc);

  module.def(
      "_xla_row_major_custom_call",
      [](const py::object& inputs, const py::object& target,
         const py::object& output_shapes, const py::object& output_dtypes,
         const py::object& backend_config, int api_version,
         const py::object& aliases, bool has_side_effect) {
        ParsedCall call = Parse({target, inputs, "payload", backend_config,
                                 output_shapes, output_dtypes});
        CustomCallConfig& config = call.config;
        if (api_version != xla::API_VERSION_TYPED_FFI) {
          CheckGpuPayload(config.target, config.backend_config);
        }
        config.api_version = api_version;
        config.has_side_effect = has_side_effect;
        config.row_major = true;
        config.single_result_is_tuple = true;
        UseTorchDTypes(call, &config);
        config.aliases =
            ParseAliases(config.target, aliases, inputs, call.outputs);
        return Trace(GpuCustomCallKind(), std::move(call));
      },
      py::arg("inputs"), py::arg("target"), py::arg("output_shapes"),
      py::arg("output_dtypes"), py::arg("backend_config"),
      py::arg("api_version"), py::arg("aliases") = py::none(),
      py::arg("has_side_effect") = false,
      "What torch_xla_ext.custom_call traces: operands and results are "
      "row-major.");
}

void DefineDirectCall(py::module_& module) {
  module.def(
      "_xla_call_custom_call_target",
      [](const std::string& target, const std::string& platform,
         const std::vector<at::Tensor>& operands, const py::bytes& payload,
         const std::vector<at::Tensor>& results, uintptr_t stream) {
        const std::string bytes = payload;
        const py::gil_scoped_release without_gil;
        CallTarget(target, platform, operands, bytes, results,
                   reinterpret_cast<void*>(stream));
      },
      py::arg("target"), py::arg("platform"), py::arg("operands"),
      py::arg("payload"), py::arg("results"), py::arg("stream") = 0,
      kCallTargetDoc);
}

// Whether the process has a CUDA client whose plugin is not behind our bridge:
// one that a user registered with torch_xla's plugins.register_plugin.
bool HasOtherCudaClient() {
  const char* device = std::getenv("PJRT_DEVICE");
  return device != nullptr && std::string_view(device) == kCudaPlatform &&
         pjrt_bridge::Loaded() == nullptr &&
         torch_xla::runtime::GetComputationClientIfInitialized() != nullptr;
}

void DefineRegistration(py::module_& module, const py::object& stock_register) {
  module.def(
      "_xla_register_custom_call_target",
      [stock_register](const std::string& name, const py::capsule& capsule,
                       const std::string& platform, int api_version) {
        const TargetApi api = ParseTargetApi(api_version);
        RegisterTarget(name, capsule.get_pointer(), platform, api);
        if (platform == kCudaPlatform && api == TargetApi::kUntyped &&
            HasOtherCudaClient()) {
          stock_register(name, capsule, platform);
        }
      },
      py::arg("name"), py::arg("capsule"), py::arg("platform"),
      py::arg("api_version") = static_cast<int>(TargetApi::kUntyped),
      kRegisterDoc);

  module.def(
      "_xla_registered_custom_call_targets",
      [](const std::string& platform, const std::string& api) {
        return RegisteredTargets(platform, ParseTargetApi(api));
      },
      py::arg("platform"), py::arg("api") = "untyped",
      "The names of the targets that the process has for `platform`, \"CUDA\" "
      "or "
      "\"Host\", sorted. `api` is \"untyped\" or \"ffi\".");

  module.def(
      "_xla_has_custom_call_target",
      [](const std::string& name, const std::string& platform,
         const std::string& api) {
        return IsRegistered(name, platform, ParseTargetApi(api));
      },
      py::arg("name"), py::arg("platform"), py::arg("api"),
      "Whether XLA has such a target.");

  module.def("_xla_kernel_schemas", &StaticKernelSchemas,
             "The schemas of the kernels that are linked into this library, by "
             "target.");

  module.def(
      "_xla_load_pjrt_plugin",
      [](const std::string& path) {
        const pjrt_bridge::PluginInfo& info = LoadPlugin(path);
        return py::make_tuple(info.major, info.minor);
      },
      py::arg("path"),
      "Loads the PJRT plugin that the bridge in this library stands in front "
      "of, "
      "and registers the \"CUDA\" targets with it. Returns its API version, "
      "(major, minor). Raises RuntimeError if torch_xla can not use it.");
}

// PyInit__XLAC of the stock binary, which lies under `lib` beside this library.
PyObject* InitStockModule() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&InitStockModule), &info);
  std::string path = info.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "torch_xla/lib/_XLAC.so";
  void* stock = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* init = stock == nullptr ? nullptr : dlsym(stock, "PyInit__XLAC");
  if (init == nullptr) {
    const char* reason = dlerror();
    PyErr_Format(PyExc_ImportError,
                 "torch_xla's stock binary is not loaded from %s: %s; install "
                 "the torch_xla wheel anew",
                 path.c_str(), reason == nullptr ? "it is missing" : reason);
    return nullptr;
  }
  return reinterpret_cast<PyObject* (*)()>(init)();
}

// The stock function `name`, taken out of the module: pybind11 would otherwise
// take a definition of the same name for one more overload.
py::object Take(py::module_& module, const char* name) {
  py::object function = module.attr(name);
  py::delattr(module, name);
  return function;
}

}  // namespace
}  // namespace torch_xla_ext

extern "C" PyObject* PyInit__XLAC() {
  namespace py = pybind11;
  PyObject* stock_module = torch_xla_ext::InitStockModule();
  if (stock_module == nullptr) return nullptr;
  auto module = py::reinterpret_steal<py::module_>(stock_module);
  try {
    using torch_xla_ext::Take;
    torch_xla_ext::RegisterStaticKernels();
    torch_xla_ext::DefineEagerMode(module, Take(module, "_set_use_eager_mode"));
    Take(module, "_xla_gpu_custom_call");
    Take(module, "_xla_custom_call");
    torch_xla_ext::DefineCustomCalls(module);
    torch_xla_ext::DefineDirectCall(module);
    torch_xla_ext::DefineRegistration(
        module, Take(module, "_xla_register_custom_call_target"));
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  return module.release().ptr();
}
