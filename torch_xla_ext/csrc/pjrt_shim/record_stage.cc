#include "torch_xla_ext/csrc/pjrt_shim/record_stage.h"

#include <map>
#include <mutex>
#include <stdexcept>

namespace torch_xla_ext::pjrt_shim {
namespace {

// The functions that the plugin has passed to the probing handler.
thread_local const XLA_FFI_Api* handed_over = nullptr;

// A handler that is never executed. It reports the version of these headers,
// which every plugin accepts.
XLA_FFI_Error* TakeFfi(XLA_FFI_CallFrame* frame) {
  handed_over = frame->api;
  const XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension != nullptr && extension->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* metadata =
        reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)
            ->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = 0;
  }
  return nullptr;
}

const XLA_FFI_Api* AskForFfi(const PJRT_Api* plugin) {
  TargetFunctions probe;
  probe.execute = reinterpret_cast<void*>(&TakeFfi);
  handed_over = nullptr;
  try {
    RegisterTarget(plugin, kFfiProbe, probe, TargetApi::kFfi);
  } catch (const std::runtime_error&) {
    return nullptr;  // the plugin does not accept targets
  }
  return handed_over;
}

// The functions of a plugin's FFI; null if its version lacks the stage.
const XLA_FFI_Api* FfiWithRecord(const PJRT_Api* plugin) {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<const PJRT_Api*, const XLA_FFI_Api*>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = known.emplace(plugin, nullptr);
  if (is_new) found->second = AskForFfi(plugin);
  const XLA_FFI_Api* ffi = found->second;
  const bool has_stage = ffi != nullptr &&
                         ffi->api_version.major_version == 0 &&
                         ffi->api_version.minor_version >= kRecordMinorVersion;
  return has_stage ? ffi : nullptr;
}

std::string TakeErrorText(const XLA_FFI_Api* ffi, XLA_FFI_Error* error) {
  ErrorDetailsArgs details = {};
  details.struct_size = offsetof(ErrorDetailsArgs, code) + sizeof(details.code);
  details.error = error;
  ffi->XLA_FFI_Error_GetMessage(
      reinterpret_cast<XLA_FFI_Error_GetMessage_Args*>(&details));
  std::string text = details.message == nullptr ? "" : details.message;
  XLA_FFI_Error_Destroy_Args destroy = {};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  ffi->XLA_FFI_Error_Destroy(&destroy);
  return text;
}

}  // namespace

bool TakesRecord(const PJRT_Api* plugin) {
  return FfiWithRecord(plugin) != nullptr;
}

void RegisterWithRecord(const PJRT_Api* plugin, const std::string& name,
                        const TargetFunctions& functions) {
  static constexpr char kPlatform[] = "CUDA";
  const XLA_FFI_Api* ffi = FfiWithRecord(plugin);
  RegisterHandlerArgs args = {};
  args.struct_size =
      offsetof(RegisterHandlerArgs, traits) + sizeof(args.traits);
  args.name = {name.data(), name.size()};
  args.platform = {kPlatform, sizeof(kPlatform) - 1};
  void* stages[] = {functions.instantiate, functions.prepare,
                    functions.initialize, functions.execute, functions.record};
  for (int i = 0; i < 5; ++i) args.stages[i] = stages[i];
  // XLA puts only such targets into command buffers.
  args.traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  XLA_FFI_Error* error = ffi->XLA_FFI_Handler_Register(
      reinterpret_cast<XLA_FFI_Handler_Register_Args*>(&args));
  if (error != nullptr) {
    throw std::runtime_error(
        "the PJRT plugin refuses the custom-call target \"" + name +
        "\": " + TakeErrorText(ffi, error));
  }
}

}  // namespace torch_xla_ext::pjrt_shim
