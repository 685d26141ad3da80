// The profiler of a plugin, as torch_xla 2.8.1 uses it.
#include <string>

#include "tests/pjrt_shim/testing.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"
#include "xla/pjrt/c/pjrt_c_api_profiler_extension.h"

namespace {

using torch_xla_ext::pjrt_shim::Load;

// The profiler as torch_xla 2.8.1 looks it up.
const PLUGIN_Profiler_Api* Profiler() {
  const PJRT_Extension_Base* extension = GetPjrtApi()->extension_start;
  while (extension->type != PJRT_Extension_Type_Profiler) {
    extension = extension->next;
  }
  return reinterpret_cast<const PJRT_Profiler_Extension*>(extension)
      ->profiler_api;
}

// 2.8.1 rejects, and then crashes on, a table of any other size than its own.
void TestProfiler(const std::string& path) {
  Load(path);
  const PLUGIN_Profiler_Api* profiler = Profiler();
  EXPECT(profiler->struct_size == PLUGIN_Profiler_Api_STRUCT_SIZE);
  auto start = ARGS(PLUGIN_Profiler_Start_Args);
  EXPECT(profiler->start(&start) == nullptr);
  EXPECT(Observations(path)->profiles == 1);
  // The plugin's other extensions are still there.
  int types = 0;
  for (const PJRT_Extension_Base* extension = GetPjrtApi()->extension_start;
       extension != nullptr; extension = extension->next) {
    types |= 1 << extension->type;
  }
  EXPECT((types & 1 << PJRT_Extension_Type_Stream) != 0);
  EXPECT((types & 1 << PJRT_Extension_Type_Gpu_Custom_Call) != 0);
}

// The calls that 2.8.1 makes for a profile, if the plugin has no profiler.
void TestNoProfiler(const std::string& path) {
  Load(path);
  const PLUGIN_Profiler_Api* profiler = Profiler();
  EXPECT(profiler->struct_size == PLUGIN_Profiler_Api_STRUCT_SIZE);
  auto create = ARGS(PLUGIN_Profiler_Create_Args);
  PLUGIN_Profiler_Error* error = profiler->create(&create);
  EXPECT(error != nullptr);
  auto message = ARGS(PLUGIN_Profiler_Error_Message_Args);
  message.error = error;
  profiler->error_message(&message);
  EXPECT_TEXT(std::string(message.message, message.message_size),
              "the PJRT plugin has no profiler");
  auto code = ARGS(PLUGIN_Profiler_Error_GetCode_Args);
  code.error = error;
  EXPECT(profiler->error_get_code(&code) == nullptr);
  EXPECT(code.code == PJRT_Error_Code_UNIMPLEMENTED);
  auto destroy_error = ARGS(PLUGIN_Profiler_Error_Destroy_Args);
  destroy_error.error = error;
  profiler->error_destroy(&destroy_error);
  auto start = ARGS(PLUGIN_Profiler_Start_Args);
  EXPECT(profiler->start(&start) == nullptr);
  auto stop = ARGS(PLUGIN_Profiler_Stop_Args);
  EXPECT(profiler->stop(&stop) == nullptr);
  auto collect = ARGS(PLUGIN_Profiler_CollectData_Args);
  collect.buffer_size_in_bytes = 7;
  EXPECT(profiler->collect_data(&collect) == nullptr);
  EXPECT(collect.buffer_size_in_bytes == 0);
  auto destroy = ARGS(PLUGIN_Profiler_Destroy_Args);
  EXPECT(profiler->destroy(&destroy) == nullptr);
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"profiler_equal", TestProfiler},
    {"profiler_newer", TestProfiler},
    {"profiler_none", TestNoProfiler},
};
