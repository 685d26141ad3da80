// What a plugin is given of a target and of a type.
#include "torch_xla_ext/csrc/pjrt_shim/targets.h"

#include <cstring>
#include <string>

#include "tests/pjrt_shim/testing.h"
#include "torch_xla_ext/csrc/pjrt_shim/record_stage.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

namespace {

using torch_xla_ext::TargetApi;
using torch_xla_ext::TargetFunctions;
using torch_xla_ext::pjrt_shim::Load;
using torch_xla_ext::pjrt_shim::RegisterTarget;
using torch_xla_ext::pjrt_shim::RegisterType;
using torch_xla_ext::pjrt_shim::TakesRecord;
using torch_xla_ext::pjrt_shim::TakesTargets;
using torch_xla_ext::pjrt_shim::TakesTraits;

TargetFunctions Function(void* execute) {
  TargetFunctions functions;
  functions.execute = execute;
  return functions;
}

// What a plugin is given of a target and of a type.
void TestTargets(const std::string& path, bool is_version_3) {
  static int one, two, stages[4];
  Load(path);
  const PJRT_Api* plugin = GetPjrtApi();
  FakeObservations* seen = Observations(path);
  void** functions = seen->last_functions;
  RegisterTarget(plugin, "a", Function(&one), TargetApi::kUntyped);
  EXPECT(std::strcmp(seen->last_target, "a") == 0);
  EXPECT(functions[3] == &one && seen->last_api == 0);
  EXPECT(!functions[0] && !functions[1] && !functions[2]);
  RegisterTarget(plugin, "a", Function(&two), TargetApi::kFfi);
  EXPECT(functions[3] == &two && seen->last_api == 1);
  EXPECT(!functions[0] && !functions[1] && !functions[2]);
  EXPECT(seen->last_traits == 0);
  EXPECT(TakesTraits(plugin) == is_version_3);
  RegisterTarget(plugin, "stages",
                 {&stages[0], &stages[1], &stages[2], &stages[3], true},
                 TargetApi::kFfi);
  for (int i = 0; i < 4; ++i) EXPECT(functions[i] == &stages[i]);
  EXPECT(seen->last_traits == (is_version_3 ? 1 : 0));
  EXPECT(seen->registrations == 3);
  const std::string refusal = Thrown([&] {
    RegisterTarget(plugin, "refused", Function(&one), TargetApi::kUntyped);
  });
  EXPECT_TEXT(refusal, "refuses the custom-call target \"refused\"");
  EXPECT_TEXT(refusal, "fake plugin: not this one");

  const auto deleter = +[](void*) {};
  EXPECT(RegisterType(plugin, "type", 0, deleter) == 100);
  EXPECT(std::strcmp(seen->last_type, "type") == 0 && seen->last_type_id == 0);
  EXPECT(seen->last_deleter == (is_version_3 ? deleter : nullptr));
  EXPECT(RegisterType(plugin, "type", 100, deleter) == 100);
  EXPECT(RegisterType(plugin, "other", 7, deleter) == 7);
  EXPECT(seen->last_type_id == 7);
  const std::string taken =
      Thrown([&] { RegisterType(plugin, "type", 101, deleter); });
  EXPECT_TEXT(taken, "refuses the FFI type \"type\"");
  EXPECT_TEXT(taken, "Type name type already registered");

  PJRT_Api without = *plugin;
  without.extension_start = nullptr;
  EXPECT(!TakesTargets(&without) && !TakesTraits(&without));
  EXPECT_TEXT(Thrown([&] {
                RegisterTarget(&without, "b", Function(&one),
                               TargetApi::kUntyped);
              }),
              "\"b\": the PJRT plugin has no custom-call extension");
  EXPECT_TEXT(Thrown([&] { RegisterType(&without, "b", 0, deleter); }),
              "FFI type \"b\": the PJRT plugin has no FFI extension");
}

// A handler of the stage `record` is registered through the plugin's own FFI. A
// plugin of an earlier version gets the other stages.
void TestRecord(const std::string& path, bool has_stage) {
  static int stages[5];
  Load(path);
  const PJRT_Api* plugin = GetPjrtApi();
  FakeObservations* seen = Observations(path);
  EXPECT(TakesRecord(plugin) == has_stage);
  EXPECT(seen->probe_minor == XLA_FFI_API_MINOR);
  TargetFunctions functions = {&stages[0], &stages[1], &stages[2],
                               &stages[3], false,      &stages[4]};
  RegisterTarget(plugin, "recorded", functions, TargetApi::kFfi);
  EXPECT(std::strcmp(seen->last_target, "recorded") == 0);
  for (int i = 0; i < 4; ++i) EXPECT(seen->last_functions[i] == &stages[i]);
  EXPECT(seen->last_functions[4] == (has_stage ? &stages[4] : nullptr));
  EXPECT(seen->last_traits == (has_stage ? 1 : 0) && seen->last_api == 1);
  EXPECT(seen->registrations == 1);
  const std::string refusal = Thrown(
      [&] { RegisterTarget(plugin, "refused", functions, TargetApi::kFfi); });
  EXPECT_TEXT(refusal, "refuses the custom-call target \"refused\"");
  EXPECT_TEXT(refusal, "fake plugin: not this one");
  // Without this handler, targets are registered as usual.
  RegisterTarget(plugin, "a", Function(&stages[0]), TargetApi::kFfi);
  EXPECT(seen->last_functions[3] == &stages[0] && seen->last_traits == 0);

  PJRT_Api without = *plugin;
  without.extension_start = nullptr;
  EXPECT(!TakesRecord(&without));
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"targets", [](const std::string& path) { TestTargets(path, false); }},
    {"targets_traits",
     [](const std::string& path) { TestTargets(path, true); }},
    {"record", [](const std::string& path) { TestRecord(path, true); }},
    {"record_older", [](const std::string& path) { TestRecord(path, false); }},
};
