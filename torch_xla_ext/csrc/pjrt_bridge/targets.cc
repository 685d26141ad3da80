#include "torch_xla_ext/csrc/pjrt_bridge/targets.h"

#include <stdexcept>

#include "torch_xla_ext/csrc/pjrt_bridge/errors.h"

namespace torch_xla_ext::pjrt_bridge {
namespace {

RegisterCustomCall* FindRegisterCustomCall(const PJRT_Api* plugin) {
  for (const PJRT_Extension_Base* extension = plugin->extension_start;
       extension != nullptr; extension = extension->next) {
    if (extension->type == PJRT_Extension_Type_Gpu_Custom_Call) {
      return reinterpret_cast<const CustomCallExtension*>(extension)
          ->custom_call;
    }
  }
  return nullptr;
}

}  // namespace

bool TakesTargets(const PJRT_Api* plugin) {
  return FindRegisterCustomCall(plugin) != nullptr;
}

void RegisterTarget(const PJRT_Api* plugin, const std::string& name,
                    void* function, TargetApi api) {
  RegisterCustomCall* register_custom_call = FindRegisterCustomCall(plugin);
  if (register_custom_call == nullptr) {
    throw std::runtime_error("custom-call target \"" + name +
                             "\": the PJRT plugin has no custom-call extension "
                             "to register it with");
  }
  RegisterCustomCallArgs args = {};
  args.struct_size = sizeof(args);
  args.function_name = name.data();
  args.function_name_size = name.size();
  args.api_version = static_cast<int>(api);
  args.handler_execute = function;
  if (PJRT_Error* error = register_custom_call(&args)) {
    throw std::runtime_error(
        "the PJRT plugin refuses the custom-call target \"" + name +
        "\": " + TakeErrorText(plugin, error));
  }
}

}  // namespace torch_xla_ext::pjrt_bridge
