// A program's first execution runs alone.
#include "torch_xla_ext/csrc/pjrt_shim/first_execution.h"

#include <string>
#include <thread>

#include "tests/pjrt_shim/testing.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

namespace {

using torch_xla_ext::pjrt_shim::Load;
using torch_xla_ext::pjrt_shim::RunFirstAlone;

// Compiles a program of the given text.
PJRT_LoadedExecutable* Compiled(std::string text) {
  auto program = ARGS(PJRT_Program);
  program.code = text.data();
  program.code_size = text.size();
  auto compile = ARGS(PJRT_Client_Compile_Args);
  compile.program = &program;
  EXPECT(GetPjrtApi()->PJRT_Client_Compile(&compile) == nullptr);
  return compile.executable;
}

// Runs the program, and transfers a buffer while it runs. Returns the number
// of transfers that the plugin saw meanwhile.
int TransfersWhileRunning(FakeObservations* seen,
                          PJRT_LoadedExecutable* executable) {
  seen->execution_ms = 300;
  seen->transfers_meanwhile = 0;
  seen->polls = 0;
  std::thread execution([executable] {
    auto options = ARGS(PJRT_ExecuteOptions);
    PJRT_Buffer* argument = nullptr;
    PJRT_Buffer* const* arguments[] = {&argument};
    PJRT_Buffer* output = nullptr;
    PJRT_Buffer** outputs[] = {&output};
    auto execute = ARGS(PJRT_LoadedExecutable_Execute_Args);
    execute.options = &options;
    execute.executable = executable;
    execute.argument_lists = arguments;
    execute.output_lists = outputs;
    execute.num_devices = 1;
    execute.num_args = 1;
    EXPECT(GetPjrtApi()->PJRT_LoadedExecutable_Execute(&execute) == nullptr);
  });
  while (!seen->executes) std::this_thread::yield();
  auto transfer = ARGS(PJRT_Client_BufferFromHostBuffer_Args);
  EXPECT(GetPjrtApi()->PJRT_Client_BufferFromHostBuffer(&transfer) == nullptr);
  execution.join();
  EXPECT(seen->events == 0);
  return seen->transfers_meanwhile;
}

void TestFirstExecution(const std::string& path) {
  Load(path);
  FakeObservations* seen = Observations(path);
  const char* const text = "custom-call to a_target";
  EXPECT(TransfersWhileRunning(seen, Compiled(text)) == 1);
  RunFirstAlone("a_target");
  PJRT_LoadedExecutable* executable = Compiled(text);
  EXPECT(TransfersWhileRunning(seen, executable) == 0);
  EXPECT(seen->polls == 3);  // it was waited for
  // Later executions share the device, and so does every other program.
  EXPECT(TransfersWhileRunning(seen, executable) == 1);
  EXPECT(seen->polls == 0);
  EXPECT(TransfersWhileRunning(seen, Compiled("add")) == 1);
  EXPECT(seen->transfers == 4);
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"first_execution", TestFirstExecution},
};
