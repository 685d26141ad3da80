// Bindings for custom calls and for the keys of cached calls.
#include "torch_xla_ext/csrc/custom_call/custom_call.h"

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/arguments.h"
#include "torch_xla_ext/csrc/custom_call/call_key.h"
#include "torch_xla_ext/csrc/custom_call/direct_call.h"
#include "torch_xla_ext/csrc/custom_call/gpu_custom_call.h"
#include "torch_xla_ext/csrc/custom_call/prepared_call.h"
#include "torch_xla_ext/csrc/pjrt_shim/first_execution.h"
#include "torch_xla_ext/csrc/python/subjects.h"
#include "torch_xla_ext/csrc/registry/builtin_targets.h"
#include "torch_xla_ext/csrc/registry/one_result.h"
#include "torch_xla_ext/csrc/registry/registration.h"
#include "torch_xla_ext/csrc/registry/text.h"
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
    be a JSON object, because XLA:GPU would parse it as its own configuration.
  output_shapes: a shape for each result.
  output_dtypes: a torch.dtype for each result.
  target: the kernel's name.
  aliases: {output: input}, or None: results that are written into the buffer of
    an input. XLA copies the input first if something else needs it.
  api_version: XLA's API version, 1 to 4. None is 2 (STATUS_RETURNING) for the target
    "triton_kernel_call", and 3 (STATUS_RETURNING_UNIFIED) for any other. 4 is
    XLA's FFI, for which `payload` is the text of the attributes.
  has_side_effect: XLA keeps the call even if nothing uses its results.
  partition: the call's name in torch_xla_ext.sharding if XLA divides the call
    among devices, or an empty string.
  result_layouts: {output: dimensions}, or None: a result's dimensions in memory
    order, the slowest-changing first. Other results are row-major.
  num_hidden_results: how many of the last results, such as workspaces, are not
    returned.
  payload_is_backend_config: XLA:GPU implements the target, and `payload` is its
    GpuBackendConfig, a JSON object.
  runs_first_alone: the first run of a program with the target has the device to
    itself, because XLA then loads something that must not overlap with other
    work, such as the capture of a CUDA graph.
  operand_layouts: {input: dimensions}, or None: as result_layouts.

Returns:
  A list of XLA tensors, one for each shape. Operands and results have these
  layouts when the kernel runs, however the inputs were made.

  An untyped function for the Host receives an array of the results' buffers,
  even for one result. If it mistakes `out` for the buffer, as _xla_custom_call
  passes it, the call fails.

Raises:
  TypeError, ValueError: at once, for a wrong argument.
  RuntimeError: when the program is compiled, if no such target is registered
    for the device's platform; when its results are read, if the kernel reported
    a failure.
)doc";

constexpr char kCustomCallDoc[] = R"doc(
Calls the target `target` with XLA's API version `api_version` (0 to 4).

This is upstream's function, except that all arguments are part of the program's
hash: calls that differ only in `backend_config`, `api_version`,
`has_side_effect` or `frontend_attributes` are different programs. Layouts are
not constrained.

An untyped function for the Host receives the buffer of a single result, or an
array with the buffers of several; from _xla_gpu_custom_call it always receives
an array. A kernel made with kernel.h, which expects an array, is refused for
one result.
)doc";

constexpr char kCallKeyDoc[] = R"doc(
Returns a call's cache key: calls with equal keys differ only in their operands.

Args:
  values: a tuple: plain values, tensors, torch's dtypes, devices, layouts,
    memory formats and sizes, and lists and tuples of these.
  operands: a list that receives the XLA tensors, or None. The key contains only
    the dtype, shape and device of a tensor.
  other: returns, for a value of any other type, the value that represents it in
    the key, or None. Without it, calls with such values are not cached.

Returns:
  bytes, or None for a call that is not cached, because a value has no key or an
  operand requires a gradient.
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
  ValueError: there is no such target, or a tensor is not contiguous or is on
    another device.
  RuntimeError: the kernel reported a failure; with the kernel's message.
)doc";

// The checked tensors of a call.
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

// Sets the buffers' dtypes to torch's, for kernels that expect them.
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
                     CustomCallConfig config) {
  const TargetApi api = config.api_version == xla::API_VERSION_TYPED_FFI
                            ? TargetApi::kFfi
                            : TargetApi::kUntyped;
  CheckIsNotXlas(config.target, CurrentPlatform(), api);
  config.target = CurrentName(config.target, CurrentPlatform(), api);
  if (api == TargetApi::kUntyped && outputs.dtypes.size() == 1 &&
      CurrentPlatform() == std::string_view(kHostPlatform)) {
    if (!config.single_result_is_tuple) {
      CheckTakesBuffer(config.target);
    } else if (config.api_version ==
               xla::API_VERSION_STATUS_RETURNING_UNIFIED) {
      config.target = NameWithOneResult(config.target);
    }
  }
  return {kind, std::move(config), std::move(outputs)};
}

py::list Trace(const PreparedCall& call, const Tensors& tensors) {
  std::vector<at::Tensor> results;
  {
    const py::gil_scoped_release without_gil;
    results = call.Trace(tensors.inputs);
  }
  return py::cast(results);
}

// The arguments of _xla_gpu_custom_call.
struct GpuCallArguments {
  const py::object& inputs;
  const py::object& payload;
  const py::object& output_shapes;
  const py::object& output_dtypes;
  const py::object& target;
  const py::object& aliases;
  std::optional<int> api_version;
  bool has_side_effect;
  const std::string& partition;
  const py::object& result_layouts;
  int64_t num_hidden_results;
  bool payload_is_backend_config;
  bool runs_first_alone;
  const py::object& operand_layouts;
};

// The checked arguments of _xla_gpu_custom_call.
struct GpuCall {
  PreparedCall call;
  Tensors tensors;
};

GpuCall ParseGpuCall(const GpuCallArguments& args) {
  CustomCallConfig config = GpuCustomCallConfig(ParseTarget(args.target));
  config.payload = ParseBytes(config.target, "payload", args.payload);
  if (args.api_version) {
    config.api_version = ParseApiVersion(
        config.target, xla::API_VERSION_ORIGINAL, *args.api_version);
  }
  config.has_side_effect = args.has_side_effect;
  Tensors tensors = ParseTensors(config.target, args.inputs, args.output_shapes,
                                 args.output_dtypes);
  config.aliases =
      ParseAliases(config.target, args.aliases, args.inputs, tensors.outputs);
  std::vector<size_t> operand_ranks, result_ranks;
  for (const torch_xla::XLATensorPtr& input : tensors.inputs) {
    operand_ranks.push_back(input->shape().get().dimensions().size());
  }
  for (const auto& shape : tensors.outputs.shapes) {
    result_ranks.push_back(shape.size());
  }
  config.operand_layouts =
      ParseLayouts(config.target, "operand_layouts", "input",
                   args.operand_layouts, operand_ranks);
  config.result_layouts =
      ParseLayouts(config.target, "result_layouts", "output",
                   args.result_layouts, result_ranks);
  CheckNumHiddenResults(config.target, args.num_hidden_results,
                        tensors.outputs);
  config.num_hidden_results = args.num_hidden_results;
  // The default target accepts the same payloads as in upstream torch_xla.
  if (config.target != kDefaultGpuCustomCallTarget) {
    if (config.api_version != xla::API_VERSION_TYPED_FFI &&
        !args.payload_is_backend_config) {
      CheckGpuPayload(config.target, config.payload);
    }
    UseTorchDTypes(tensors, &config);
    config.partition = args.partition;
  }
  if (args.runs_first_alone) pjrt_shim::RunFirstAlone(config.target);
  return {Prepare(GpuCustomCallKind(), tensors.outputs, std::move(config)),
          std::move(tensors)};
}

// Defines a function with these arguments, which calls `function`.
template <typename Function>
void DefineGpuCall(py::module_& module, const char* name, Function function,
                   const char* doc) {
  module.def(
      name,
      [function](const py::object& inputs, const py::object& payload,
                 const py::object& output_shapes,
                 const py::object& output_dtypes, const py::object& target,
                 const py::object& aliases, std::optional<int> api_version,
                 bool has_side_effect, const std::string& partition,
                 const py::object& result_layouts, int64_t num_hidden_results,
                 bool payload_is_backend_config, bool runs_first_alone,
                 const py::object& operand_layouts) {
        return function(GpuCallArguments{
            inputs, payload, output_shapes, output_dtypes, target, aliases,
            api_version, has_side_effect, partition, result_layouts,
            num_hidden_results, payload_is_backend_config, runs_first_alone,
            operand_layouts});
      },
      py::arg("inputs"), py::arg("payload"), py::arg("output_shapes"),
      py::arg("output_dtypes"), py::arg("target") = kDefaultGpuCustomCallTarget,
      py::arg("aliases") = py::none(), py::arg("api_version") = py::none(),
      py::arg("has_side_effect") = false, py::arg("partition") = "",
      py::arg("result_layouts") = py::none(), py::arg("num_hidden_results") = 0,
      py::arg("payload_is_backend_config") = false,
      py::arg("runs_first_alone") = false,
      py::arg("operand_layouts") = py::none(), doc);
}

// Whether `payload` comes from torch_xla.experimental.triton, which carries a
// kernel and its arguments: a bytes object with a method `call`.
bool CallsItself(const py::object& payload) {
  return py::isinstance<py::bytes>(payload) &&
         !PyBytes_CheckExact(payload.ptr()) && py::hasattr(payload, "call");
}

}  // namespace

void DefineCustomCalls(py::module_& module) {
  py::class_<PreparedCall, std::shared_ptr<PreparedCall>>(module,
                                                          "_XlaPreparedCall");

  DefineGpuCall(
      module, "_xla_gpu_custom_call",
      [](const GpuCallArguments& args) {
        if (CallsItself(args.payload)) {
          return py::list(args.payload.attr("call")(
              args.inputs, args.output_shapes, args.output_dtypes, args.target,
              args.aliases));
        }
        const GpuCall parsed = ParseGpuCall(args);
        return Trace(parsed.call, parsed.tensors);
      },
      kGpuCustomCallDoc);

  DefineGpuCall(
      module, "_xla_prepare_custom_call",
      [](const GpuCallArguments& args) {
        return std::make_shared<PreparedCall>(ParseGpuCall(args).call);
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
      py::arg("call"), py::arg("inputs"));

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

  module.def("_xla_call_key", &CallKey, py::arg("values"),
             py::arg("operands") = py::none(), py::arg("other") = py::none(),
             kCallKeyDoc);

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

}  // namespace torch_xla_ext
