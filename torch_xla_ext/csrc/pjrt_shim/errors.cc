#include "torch_xla_ext/csrc/pjrt_shim/errors.h"

namespace torch_xla_ext::pjrt_shim {

std::string ErrorText(const PJRT_Api* plugin, PJRT_Error* error) {
  PJRT_Error_Message_Args args = {};
  args.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  args.error = error;
  plugin->PJRT_Error_Message(&args);
  return std::string(args.message, args.message_size);
}

void DestroyError(const PJRT_Api* plugin, PJRT_Error* error) {
  PJRT_Error_Destroy_Args args = {};
  args.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE;
  args.error = error;
  plugin->PJRT_Error_Destroy(&args);
}

std::string TakeErrorText(const PJRT_Api* plugin, PJRT_Error* error) {
  std::string text = ErrorText(plugin, error);
  DestroyError(plugin, error);
  return text;
}

}  // namespace torch_xla_ext::pjrt_shim
