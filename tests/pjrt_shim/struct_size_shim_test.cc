// Argument structures that are longer in newer plugins.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/pjrt_shim/testing.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

namespace {

using torch_xla_ext::pjrt_shim::Load;

// The calls that 2.8.1 makes, on a plugin whose structures `grew` or did not.
void TestCalls(const std::string& path, bool grew) {
  EXPECT(GetPjrtApi() == nullptr);
  EXPECT(Load(path).path == path);
  const PJRT_Api* api = GetPjrtApi();
  EXPECT(api != nullptr);
  FakeObservations* seen = Observations(path);
  EXPECT(seen->refusals == 0);

  // Functions that the plugin does not have are missing in the shim, too.
  EXPECT(api->PJRT_Buffer_Device == nullptr);

  auto initialize = ARGS(PJRT_Plugin_Initialize_Args);
  EXPECT(api->PJRT_Plugin_Initialize(&initialize) == nullptr);

  // 2.8.1 passes 24, its PJRT_Plugin_Attributes_Args_STRUCT_SIZE.
  auto attributes = Zero<PJRT_Plugin_Attributes_Args>(24);
  EXPECT(api->PJRT_Plugin_Attributes(&attributes) == nullptr);
  EXPECT(seen->refusals == (grew ? 1 : 0));
  EXPECT(attributes.struct_size == 24);
  EXPECT(attributes.num_attributes == 1);
  EXPECT(attributes.attributes != nullptr &&
         attributes.attributes->int64_value == 7);

  // Results are copied back, and nothing is written past the caller's
  // structure.
  struct {
    PJRT_Device_MemoryStats_Args args;
    char guard[64];
  } stats = {};
  std::memset(stats.guard, 0x5a, sizeof(stats.guard));
  stats.args.struct_size = PJRT_Device_MemoryStats_Args_STRUCT_SIZE;
  for (int i = 0; i < 2; ++i) {
    stats.args.bytes_in_use = 0;
    EXPECT(api->PJRT_Device_MemoryStats(&stats.args) == nullptr);
    EXPECT(stats.args.struct_size == PJRT_Device_MemoryStats_Args_STRUCT_SIZE);
    EXPECT(stats.args.bytes_in_use == 12345);
    EXPECT(stats.args.peak_pool_bytes_is_set);
  }
  for (const char byte : stats.guard) EXPECT(byte == 0x5a);

  // A nested structure.
  auto options = ARGS(PJRT_ExecuteOptions);
  options.launch_id = 42;
  auto execute = ARGS(PJRT_LoadedExecutable_Execute_Args);
  execute.options = &options;
  const int refusals_before = seen->refusals;
  for (int i = 0; i < 3; ++i) {
    execute.num_args = 0;
    EXPECT(api->PJRT_LoadedExecutable_Execute(&execute) == nullptr);
    EXPECT(execute.options == &options);
    EXPECT(execute.num_args == 99);
  }
  EXPECT(options.struct_size == PJRT_ExecuteOptions_STRUCT_SIZE);
  EXPECT(seen->executions == 3);  // a rejected call is not an execution
  EXPECT(seen->launch_id == 42);
  EXPECT(seen->new_members_are_zero);
  // Each structure is rejected once, in the first call, and is no longer than
  // requested.
  EXPECT(seen->refusals == refusals_before + (grew ? 2 : 0));
  EXPECT(seen->options_size ==
         PJRT_ExecuteOptions_STRUCT_SIZE + (grew ? 16 : 0));

  auto program = ARGS(PJRT_Program);
  auto optimized = ARGS(PJRT_Executable_OptimizedProgram_Args);
  optimized.program = &program;
  EXPECT(api->PJRT_Executable_OptimizedProgram(&optimized) == nullptr);
  EXPECT(program.code_size == 4321);

  // Errors are passed on unchanged, once.
  auto create = ARGS(PJRT_Client_Create_Args);
  EXPECT_TEXT(Text(api, api->PJRT_Client_Create(&create)),
              "fake plugin: no client");
  auto fingerprint = ARGS(PJRT_Executable_Fingerprint_Args);
  EXPECT_TEXT(Text(api, api->PJRT_Executable_Fingerprint(&fingerprint)),
              "not implemented here");
  EXPECT(seen->fingerprints == 1);
  auto serialize = ARGS(PJRT_Executable_Serialize_Args);
  EXPECT_TEXT(Text(api, api->PJRT_Executable_Serialize(&serialize)),
              "Unexpected PJRT_Executable_Serialize_Args size");
}

void TestThreads(const std::string& path) {
  Load(path);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      auto options = ARGS(PJRT_ExecuteOptions);
      auto execute = ARGS(PJRT_LoadedExecutable_Execute_Args);
      execute.options = &options;
      for (int call = 0; call < 1000; ++call) {
        EXPECT(GetPjrtApi()->PJRT_LoadedExecutable_Execute(&execute) ==
               nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"equal", [](const std::string& path) { TestCalls(path, false); }},
    {"newer", [](const std::string& path) { TestCalls(path, true); }},
    {"threads", TestThreads},
};
