#include "torch_xla_ext/csrc/pjrt_shim/profiler.h"

#include <string_view>

#include "xla/pjrt/c/pjrt_c_api_profiler_extension.h"

// The profiler defines its own error type.
struct PLUGIN_Profiler_Error {
  std::string_view text;
};

namespace torch_xla_ext::pjrt_shim {
namespace {

PLUGIN_Profiler_Error no_profiler = {
    "the PJRT plugin has no profiler that torch_xla 2.8.1 can use: the profile "
    "will not show what runs on the device"};

constexpr PLUGIN_Profiler_Api kNoProfiler = {
    PLUGIN_Profiler_Api_STRUCT_SIZE,
    /*priv=*/nullptr,
    /*error_destroy=*/[](PLUGIN_Profiler_Error_Destroy_Args*) {},
    /*error_message=*/
    [](PLUGIN_Profiler_Error_Message_Args* args) {
      args->message = args->error->text.data();
      args->message_size = args->error->text.size();
    },
    /*error_get_code=*/
    [](PLUGIN_Profiler_Error_GetCode_Args* args) -> PLUGIN_Profiler_Error* {
      args->code = PJRT_Error_Code_UNIMPLEMENTED;
      return nullptr;
    },
    /*create=*/
    [](PLUGIN_Profiler_Create_Args* args) {
      args->profiler = nullptr;
      return &no_profiler;
    },
    // XLA calls these even if there is no profiler; an error from them would
    // end the profile, which may still contain the host's part.
    /*destroy=*/
    [](PLUGIN_Profiler_Destroy_Args*) -> PLUGIN_Profiler_Error* {
      return nullptr;
    },
    /*start=*/
    [](PLUGIN_Profiler_Start_Args*) -> PLUGIN_Profiler_Error* {
      return nullptr;
    },
    /*stop=*/
    [](PLUGIN_Profiler_Stop_Args*) -> PLUGIN_Profiler_Error* {
      return nullptr;
    },
    /*collect_data=*/
    [](PLUGIN_Profiler_CollectData_Args* args) -> PLUGIN_Profiler_Error* {
      args->buffer_size_in_bytes = 0;
      return nullptr;
    },
};

const PLUGIN_Profiler_Api* FindProfiler(const PJRT_Extension_Base* extensions) {
  for (; extensions != nullptr; extensions = extensions->next) {
    if (extensions->type != PJRT_Extension_Type_Profiler) continue;
    const PLUGIN_Profiler_Api* api =
        reinterpret_cast<const PJRT_Profiler_Extension*>(extensions)
            ->profiler_api;
    if (api == nullptr || api->struct_size < PLUGIN_Profiler_Api_STRUCT_SIZE) {
      break;
    }
    return api;
  }
  return &kNoProfiler;
}

}  // namespace

PJRT_Extension_Base* WithProfiler(PJRT_Extension_Base* extensions) {
  static PLUGIN_Profiler_Api api;
  static PJRT_Profiler_Extension extension;
  api = *FindProfiler(extensions);  // the functions that 2.8.1 knows
  api.struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE;
  extension = {};
  extension.base = {PJRT_Profiler_Extension_STRUCT_SIZE,
                    PJRT_Extension_Type_Profiler, extensions};
  extension.profiler_api = &api;
  return &extension.base;
}

}  // namespace torch_xla_ext::pjrt_shim
