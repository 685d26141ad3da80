// Programs whose start fails.
#include "torch_xla_ext/csrc/pjrt_shim/failed_start.h"

#include <string>
#include <thread>

#include "tests/pjrt_shim/testing.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

namespace {

using torch_xla_ext::pjrt_shim::Load;

// Starts a program, and returns the text of the start's error.
std::string Start(FakeObservations* seen) {
  PJRT_Buffer* output = nullptr;
  PJRT_Buffer** outputs[] = {&output};
  PJRT_Event* events[] = {nullptr};
  auto options = ARGS(PJRT_ExecuteOptions);
  auto execute = ARGS(PJRT_LoadedExecutable_Execute_Args);
  execute.options = &options;
  execute.output_lists = outputs;
  execute.device_complete_events = events;
  execute.num_devices = 1;
  seen->events = seen->buffers = 0;
  const PJRT_Api* api = GetPjrtApi();
  PJRT_Error* error = api->PJRT_LoadedExecutable_Execute(&execute);
  return error == nullptr ? "" : Text(api, error);
}

void TestFailedStart(const std::string& path) {
  Load(path);
  FakeObservations* seen = Observations(path);
  for (const bool fails : {false, true}) {
    seen->starts_fail = fails;
    // The results have the error, and are the caller's.
    EXPECT(Start(seen).empty());
    EXPECT(seen->buffers == 1 && seen->events == 1);
  }
  {
    const torch_xla_ext::pjrt_shim::FailAtStart fail_at_start;
    EXPECT_TEXT(Start(seen), "the kernel refuses its operands");
    EXPECT(seen->buffers == 0 && seen->events == 0);
    std::thread([seen] { EXPECT(Start(seen).empty()); }).join();
    seen->starts_fail = false;
    EXPECT(Start(seen).empty());
    EXPECT(seen->buffers == 1 && seen->events == 1);
  }
  seen->starts_fail = true;
  EXPECT(Start(seen).empty());
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"failed_start", TestFailedStart},
};
