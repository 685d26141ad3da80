#include "torch_xla_ext/csrc/python/bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/overrides.h"
#include "torch_xla_ext/csrc/custom_call/arguments.h"
#include "torch_xla_ext/csrc/custom_call/call_key.h"
#include "torch_xla_ext/csrc/custom_call/custom_call.h"
#include "torch_xla_ext/csrc/custom_call/direct_call.h"
#include "torch_xla_ext/csrc/custom_call/dispatcher_kernels.h"
#include "torch_xla_ext/csrc/custom_call/gpu_custom_call.h"
#include "torch_xla_ext/csrc/custom_call/prepared_call.h"
#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"
#include "torch_xla_ext/csrc/python/graph.h"
#include "torch_xla_ext/csrc/registry/module_extensions.h"
#include "torch_xla_ext/csrc/registry/registration.h"
#include "torch_xla_ext/csrc/registry/static_kernels.h"
#include "torch_xla_ext/csrc/registry/text.h"
#include "torch_xla_ext/csrc/runtime_fixes/buffer_donation.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"
#include "torch_xla_ext/csrc/runtime_fixes/random_state.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

// Upstream's node kinds.
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
  target: the kernel's name.
  aliases: {output: input}, or None: results that are written into the buffer of
    an input. XLA copies the input first if something else needs it.
  api_version: XLA's, 1 to 4. None is 2 (STATUS_RETURNING) for the target
    "triton_kernel_call", and 3 (STATUS_RETURNING_UNIFIED) for any other. 4 is
    XLA's FFI, for which `payload` is the text of the attributes.
  has_side_effect: XLA keeps the call although nothing uses its results.
  operand_shards, result_shards: how each device runs the call on its part of
    the inputs (torch_xla_ext.sharding.plan.Shard); shapes are those of the
    whole. Results behind `result_shards` are left out.

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

// The tensors of a call, checked.
struct Tensors {
  std::vector<torch_xla::XLATensorPtr> inputs;
  OutputTypes outputs;
};

Tensors ParseTensors(const std::string& target, const py::object& inputs,
                     const py::object& output_shapes,
                     const py::object& output_dtypes) {
  Tensors tensors;
  tensors.outputs = ParseOutputTypes(target, output_shapes, output_dtypes);
  tensors.inputs = ParseInputs(target, inputs);
  return tensors;
}

int ParseApiVersion(const std::string& target, int lowest, int api_version) {
  if (api_version >= lowest && api_version <= xla::API_VERSION_TYPED_FFI) {
    return api_version;
  }
  throw py::value_error("custom call " + Quoted(target) +
                        ": api_version must be " + std::to_string(lowest) +
                        " to 4, but is " + std::to_string(api_version));
}

// For kernels that get torch's dtypes: makes the buffers have these dtypes.
void UseTorchDTypes(const Tensors& tensors, CustomCallConfig* config) {
  CheckNothingIsNarrowed(config->target, tensors.inputs, tensors.outputs);
  for (const torch_xla::XLATensorPtr& input : tensors.inputs) {
    config->operand_types.push_back(
        torch_xla::MakeXlaPrimitiveType(input->dtype(), &input->GetDevice()));
  }
}

// Replaces the target's name by the one under which XLA knows it. Refuses
// XLA's own targets.
PreparedCall Prepare(torch::lazy::OpKind kind, OutputTypes outputs,
                     CustomCallConfig config,
                     std::vector<Shard> result_shards = {}) {
  const TargetApi api = config.api_version == xla::API_VERSION_TYPED_FFI
                            ? TargetApi::kFfi
                            : TargetApi::kUntyped;
  CheckIsNotXlas(config.target, CurrentPlatform(), api);
  config.target = CurrentName(config.target, CurrentPlatform(), api);
  return {kind, std::move(config), std::move(outputs),
          std::move(result_shards)};
}

py::list Trace(const PreparedCall& call, const Tensors& tensors) {
  std::vector<at::Tensor> results;
  {
    const py::gil_scoped_release without_gil;
    results = call.Trace(tensors.inputs);
  }
  return py::cast(results);
}

// Made by torch_xla_ext.sharding, and not checked again.
std::vector<Shard> ParseShards(const py::object& shards) {
  std::vector<Shard> result;
  if (shards.is_none()) return result;
  for (const py::handle& shard : shards) {
    result.push_back({shard.attr("sharding").cast<std::string>(),
                      shard.attr("shape").cast<std::vector<int64_t>>(),
                      shard.attr("marked").cast<bool>()});
  }
  return result;
}

// The arguments of _xla_gpu_custom_call, checked.
struct GpuCall {
  PreparedCall call;
  Tensors tensors;
};

GpuCall ParseGpuCall(const py::object& inputs, const py::object& payload,
                     const py::object& output_shapes,
                     const py::object& output_dtypes, const py::object& target,
                     const py::object& aliases, std::optional<int> api_version,
                     bool has_side_effect, const py::object& operand_shards,
                     const py::object& result_shards) {
  CustomCallConfig config = GpuCustomCallConfig(ParseTarget(target));
  config.payload = ParseBytes(config.target, "payload", payload);
  if (api_version) {
    config.api_version =
        ParseApiVersion(config.target, xla::API_VERSION_ORIGINAL, *api_version);
  }
  config.has_side_effect = has_side_effect;
  Tensors tensors =
      ParseTensors(config.target, inputs, output_shapes, output_dtypes);
  config.aliases =
      ParseAliases(config.target, aliases, inputs, tensors.outputs);
  // The default target accepts what it accepts in stock torch_xla.
  if (config.target != kDefaultGpuCustomCallTarget) {
    if (config.api_version != xla::API_VERSION_TYPED_FFI) {
      CheckGpuPayload(config.target, config.payload);
    }
    UseTorchDTypes(tensors, &config);
    config.shards = ParseShards(operand_shards);
  }
  return {Prepare(GpuCustomCallKind(), tensors.outputs, std::move(config),
                  ParseShards(result_shards)),
          std::move(tensors)};
}

// Whether it is a payload of torch_xla.experimental.triton, which carries a
// kernel and its arguments: a bytes object with a method `call`.
bool CallsItself(const py::object& payload) {
  return py::isinstance<py::bytes>(payload) &&
         !PyBytes_CheckExact(payload.ptr()) && py::hasattr(payload, "call");
}

void DefineCustomCalls(py::module_& module) {
  module.def(
      "_xla_gpu_custom_call",
      [](const py::object& inputs, const py::object& payload,
         const py::object& output_shapes, const py::object& output_dtypes,
         const py::object& target, const py::object& aliases,
         std::optional<int> api_version, bool has_side_effect,
         const py::object& operand_shards, const py::object& result_shards) {
        if (CallsItself(payload)) {
          return py::list(payload.attr("call")(inputs, output_shapes,
                                               output_dtypes, target, aliases));
        }
        const GpuCall parsed = ParseGpuCall(
            inputs, payload, output_shapes, output_dtypes, target, aliases,
            api_version, has_side_effect, operand_shards, result_shards);
        return Trace(parsed.call, parsed.tensors);
      },
      py::arg("inputs"), py::arg("payload"), py::arg("output_shapes"),
      py::arg("output_dtypes"), py::arg("target") = kDefaultGpuCustomCallTarget,
      py::arg("aliases") = py::none(), py::arg("api_version") = py::none(),
      py::arg("has_side_effect") = false,
      py::arg("operand_shards") = py::none(),
      py::arg("result_shards") = py::none(), kGpuCustomCallDoc);

  module.def(
      "_xla_prepare_custom_call",
      [](const py::object& inputs, const py::object& payload,
         const py::object& output_shapes, const py::object& output_dtypes,
         const py::object& target, const py::object& aliases,
         std::optional<int> api_version, bool has_side_effect,
         const py::object& operand_shards, const py::object& result_shards) {
        return std::make_shared<PreparedCall>(
            ParseGpuCall(inputs, payload, output_shapes, output_dtypes, target,
                         aliases, api_version, has_side_effect, operand_shards,
                         result_shards)
                .call);
      },
      "Checks the arguments of _xla_gpu_custom_call. Returns the call without "
      "its operands, for _xla_register_operator and _xla_call_prepared.");

  module.def(
      "_xla_call_prepared",
      [](const PreparedCall& call, const py::object& inputs) {
        Tensors tensors;
        tensors.inputs = ParseInputs(call.config.target, inputs);
        return Trace(call, tensors);
      },
      py::arg("call"), py::arg("inputs"),
      "Makes the call with operands of the shapes and dtypes that it was "
      "prepared for.");

  module.def(
      "_xla_custom_call",
      [](const py::object& inputs, const py::object& target,
         const py::object& output_shapes, const py::object& output_dtypes,
         bool has_side_effect, const py::object& backend_config,
         int api_version,
         std::map<std::string, std::string> frontend_attributes) {
        CustomCallConfig config;
        config.target = ParseTarget(target);
        config.payload =
            ParseBytes(config.target, "backend_config", backend_config);
        config.api_version = ParseApiVersion(
            config.target, xla::API_VERSION_UNSPECIFIED, api_version);
        if (config.api_version != xla::API_VERSION_TYPED_FFI) {
          CheckBackendConfig(config.target, config.payload);
        }
        config.has_side_effect = has_side_effect;
        config.frontend_attributes = std::move(frontend_attributes);
        const Tensors tensors =
            ParseTensors(config.target, inputs, output_shapes, output_dtypes);
        return Trace(
            Prepare(CustomCallKind(), tensors.outputs, std::move(config)),
            tensors);
      },
      py::arg("inputs"), py::arg("target"), py::arg("output_shapes"),
      py::arg("output_dtypes"), py::arg("has_side_effect"),
      py::arg("backend_config"), py::arg("api_version"),
      py::arg("frontend_attributes"), kCustomCallDoc);
}

void DefineShardings(py::module_& module) {
  module.def(
      "_xla_sharding",
      [](const at::Tensor& tensor) -> std::optional<py::bytes> {
        const torch_xla::XLATensorPtr xla_tensor =
            torch_xla::bridge::TryGetXlaTensor(tensor);
        if (!xla_tensor) return std::nullopt;
        const std::optional<std::string> sharding = ShardingOf(*xla_tensor);
        if (!sharding) return std::nullopt;
        return py::bytes(*sharding);
      },
      py::arg("tensor"),
      "The sharding of an XLA tensor, an xla::OpSharding, serialized; None if "
      "it has none.");
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

void DefineRegistration(py::module_& module) {
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
         uintptr_t initialize, uintptr_t execute, const std::string& platform,
         bool command_buffer_compatible) {
        TargetFunctions functions;
        functions.instantiate = reinterpret_cast<void*>(instantiate);
        functions.prepare = reinterpret_cast<void*>(prepare);
        functions.initialize = reinterpret_cast<void*>(initialize);
        functions.execute = reinterpret_cast<void*>(execute);
        functions.command_buffer_compatible = command_buffer_compatible;
        RegisterTarget(name, functions, platform, TargetApi::kFfi);
      },
      py::arg("name"), py::arg("instantiate"), py::arg("prepare"),
      py::arg("initialize"), py::arg("execute"), py::arg("platform"),
      py::arg("command_buffer_compatible"),
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
      "XLA_FFI_TypeId, which gets the id. The deleter may be 0.");

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
      "_xla_current_custom_call_target",
      [](const std::string& name, const std::string& platform,
         const std::string& api) {
        return CurrentName(name, platform, ParseTargetApi(api));
      },
      py::arg("name"), py::arg("platform"), py::arg("api"),
      "What the HLO says for a call of `name` that is traced now: the name, or "
      "\"name#2\" and so on after further functions were registered under it.");

  module.def(
      "_xla_has_custom_call_target",
      [](const std::string& name, const std::string& platform,
         const std::string& api) {
        return CurrentFunction(name, platform, ParseTargetApi(api)) != nullptr;
      },
      py::arg("name"), py::arg("platform"), py::arg("api"),
      "Whether XLA has such a target.");

  module.def(
      "_xla_default_custom_call_api",
      [](const std::string& name, const std::string& platform) {
        return DefaultApi(name, platform) == TargetApi::kFfi ? "ffi"
                                                             : "untyped";
      },
      py::arg("name"), py::arg("platform"),
      "The API of calls of a target that do not specify one.");

  module.def(
      "_xla_custom_call_function",
      [](const std::string& name, const std::string& platform,
         const std::string& api) {
        return Described(CurrentFunction(name, platform, ParseTargetApi(api)));
      },
      py::arg("name"), py::arg("platform"), py::arg("api"),
      "The function that calls of a target run, in words.");

  module.def("_xla_kernel_schemas", &StaticKernelSchemas,
             "The schemas of the kernels that are linked into this library, by "
             "target.");
  module.def("_xla_kernel_sizes", &StaticKernelSizes,
             "Their functions that say the sizes of results: target, size, "
             "address.");

  module.def(
      "_xla_load_pjrt_plugin",
      [](const std::string& path) {
        const pjrt_shim::PluginInfo& info = pjrt_shim::Load(path);
        return py::make_tuple(info.major, info.minor);
      },
      py::arg("path"),
      "Loads the PJRT plugin that the shim in this library stands in front "
      "of. Returns its API version, (major, minor). Raises RuntimeError if "
      "torch_xla cannot use it.");
  module.def(
      "_xla_compile_options",
      [] { return py::bytes(pjrt_shim::CompileOptions()); },
      "What _xla_set_compile_options of this thread has set last.");
  module.def(
      "_xla_set_compile_options",
      [](const py::bytes& fields) { pjrt_shim::SetCompileOptions(fields); },
      py::arg("fields"),
      "Adds these fields of XLA's CompileOptionsProto to the options of each "
      "program that this thread compiles by a PJRT plugin.");
  module.def("_xla_lost_process", &LostProcess,
             "What is raised because another process of this program is lost; "
             "empty if none is.");
}

void DefineDonation(py::module_& module) {
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
      py::arg("tensors"),
      "Whether a value that has not been computed yet needs the data of any of "
      "these tensors, which have data.");
}

// Once five calls of a function of torch.compile(backend="openxla") had the
// same shardings, torch_xla no longer compares them, and runs that program for
// any sharding: each device then mistakes its shard for another. This variable
// sets the number of calls for which torch_xla compares.
void AlwaysCompareShardings() {
  py::module_::import("os").attr("environ").attr("setdefault")(
      "XLA_DYNAMO_INPUT_SHARDING_CHECK_THRESHOLD", "1000000000000");
}

// The handlers that the program has given the root logger:
// torch_xla_ext_startup.root_logger removes those that torch_xla adds. Of
// torch_xla's own modules, this one is imported first.
void DefineRootLogHandlers(py::module_& module) {
  const py::object root = py::module_::import("logging").attr("root");
  module.attr("_root_log_handlers") = root.attr("handlers").attr("copy")();
}

}  // namespace

void DefineFunctions(py::module_& module) {
  RegisterAtenOverrides();
  RegisterStaticKernels();
  DefineCallKey(module);
  DefineDispatcherKernels(module);
  DefineCustomCalls(module);
  DefineDirectCall(module);
  DefineShardings(module);
  DefineRegistration(module);
  DefineGraph(module);
  DefineDonation(module);
  DefineRandomState(module);
  DefineRootLogHandlers(module);
  AlwaysCompareShardings();
  for (const ModuleExtension define : ModuleExtensions()) define(module);
}

}  // namespace torch_xla_ext
