#include "torch_xla_ext/csrc/registry/ffi_checks.h"

#include "xla/ffi/api/c_api_internal.h"

namespace torch_xla_ext {
namespace {

// The original functions of XLA.
XLA_FFI_ExecutionContext_Get* get_user_data = nullptr;
XLA_FFI_State_Set* set_state = nullptr;

XLA_FFI_Error* GetUserData(XLA_FFI_ExecutionContext_Get_Args* args) {
  const XLA_FFI_Api* api = XLA_FFI_GetApi();
  if (api->internal_api->XLA_FFI_INTERNAL_ExecutionContext_Get(args->ctx) !=
      nullptr) {
    return get_user_data(args);
  }
  return MakeFfiError(
      api,
      "the handler asks for ffi::UserData, but torch_xla passes none to a "
      "program: pass the data as an operand or an attribute, or keep it in the "
      "handler's state",
      XLA_FFI_Error_Code_UNIMPLEMENTED);
}

XLA_FFI_Error* SetRegisteredState(XLA_FFI_State_Set_Args* args) {
  if (args->type_id->type_id != 0) return set_state(args);
  if (args->deleter != nullptr) args->deleter(args->state);
  return MakeFfiError(
      XLA_FFI_GetApi(),
      "the type of the handler's state is not registered: call "
      "torch_xla_ext.register_ffi_type(name, type_id, platform=…) before the "
      "program is compiled",
      XLA_FFI_Error_Code_FAILED_PRECONDITION);
}

}  // namespace

XLA_FFI_Error* MakeFfiError(const XLA_FFI_Api* api, const std::string& text,
                            XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = text.c_str();
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

void AddFfiChecks() {
  [[maybe_unused]] static const bool added = [] {
    // XLA's table is writable; only its accessor says const.
    auto* api = const_cast<XLA_FFI_Api*>(XLA_FFI_GetApi());
    get_user_data = api->XLA_FFI_ExecutionContext_Get;
    set_state = api->XLA_FFI_State_Set;
    api->XLA_FFI_ExecutionContext_Get = GetUserData;
    api->XLA_FFI_State_Set = SetRegisteredState;
    return true;
  }();
}

}  // namespace torch_xla_ext
