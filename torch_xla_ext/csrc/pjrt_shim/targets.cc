#include "torch_xla_ext/csrc/pjrt_shim/targets.h"

#include <cstddef>
#include <stdexcept>

#include "torch_xla_ext/csrc/pjrt_shim/errors.h"
#include "torch_xla_ext/csrc/pjrt_shim/extensions.h"
#include "torch_xla_ext/csrc/pjrt_shim/record_stage.h"
#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext::pjrt_shim {
namespace {

const CustomCallExtension* FindCustomCalls(const PJRT_Api* plugin) {
  return FindExtension<CustomCallExtension>(
      plugin, PJRT_Extension_Type_Gpu_Custom_Call);
}

}  // namespace

bool TakesTargets(const PJRT_Api* plugin) {
  return FindCustomCalls(plugin) != nullptr;
}

bool TakesTraits(const PJRT_Api* plugin) {
  const CustomCallExtension* extension = FindCustomCalls(plugin);
  return extension != nullptr &&
         extension->base.struct_size >
             offsetof(CustomCallExtension, handles_traits) &&
         extension->handles_traits;
}

void RegisterTarget(const PJRT_Api* plugin, const std::string& name,
                    const TargetFunctions& functions, TargetApi api) {
  const CustomCallExtension* extension = FindCustomCalls(plugin);
  if (extension == nullptr) {
    throw std::runtime_error("custom-call target \"" + name +
                             "\": the PJRT plugin has no custom-call extension "
                             "to register it with");
  }
  if (functions.record != nullptr && api == TargetApi::kFfi &&
      TakesRecord(plugin)) {
    return RegisterWithRecord(plugin, name, functions);
  }
  RegisterCustomCallArgs args = {};
  args.struct_size =
      offsetof(RegisterCustomCallArgs, traits) + sizeof(args.traits);
  args.function_name = name.data();
  args.function_name_size = name.size();
  args.api_version = static_cast<int>(api);
  args.handler_instantiate = functions.instantiate;
  args.handler_prepare = functions.prepare;
  args.handler_initialize = functions.initialize;
  args.handler_execute = functions.execute;
  if (functions.command_buffer_compatible) {
    args.traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  }
  if (PJRT_Error* error = extension->custom_call(&args)) {
    throw std::runtime_error(
        "the PJRT plugin refuses the custom-call target \"" + name +
        "\": " + TakeErrorText(plugin, error));
  }
}

int64_t RegisterType(const PJRT_Api* plugin, const std::string& name,
                     int64_t id, Deleter* deleter) {
  const auto* extension =
      FindExtension<FfiExtension>(plugin, PJRT_Extension_Type_FFI);
  if (extension == nullptr || extension->register_type == nullptr) {
    throw std::runtime_error("FFI type \"" + name +
                             "\": the PJRT plugin has no FFI extension to "
                             "register it with");
  }
  TypeInfo info = {deleter, nullptr, nullptr};
  RegisterTypeArgs args = {};
  args.struct_size = sizeof(args);
  args.type_name = name.data();
  args.type_name_size = name.size();
  args.type_id = id;
  args.type_info = &info;
  if (PJRT_Error* error = extension->register_type(&args)) {
    throw std::runtime_error("the PJRT plugin refuses the FFI type \"" + name +
                             "\": " + TakeErrorText(plugin, error));
  }
  return args.type_id;
}

}  // namespace torch_xla_ext::pjrt_shim
