// Options that are added to those of a program.
#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"

#include <string>
#include <thread>

#include "tests/pjrt_shim/testing.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

namespace {

using torch_xla_ext::pjrt_shim::Load;
using torch_xla_ext::pjrt_shim::SetCompileOptions;

void TestCompileOptions(const std::string& path) {
  Load(path);
  const FakeObservations* seen = Observations(path);
  auto program = ARGS(PJRT_Program);
  auto compile = ARGS(PJRT_Client_Compile_Args);
  compile.program = &program;
  const std::string given = "given ";
  compile.compile_options = given.data();
  compile.compile_options_size = given.size();
  const auto compiled_with = [&] {
    EXPECT(GetPjrtApi()->PJRT_Client_Compile(&compile) == nullptr);
    EXPECT(compile.compile_options == given.data());
    EXPECT(compile.compile_options_size == given.size());
    return seen->compile_options;
  };
  EXPECT(compiled_with() == given);
  SetCompileOptions("own");
  EXPECT(compiled_with() == "given own");
  std::thread([&] { EXPECT(compiled_with() == given); }).join();
  SetCompileOptions("");
  EXPECT(compiled_with() == given);
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"compile_options", TestCompileOptions},
};
