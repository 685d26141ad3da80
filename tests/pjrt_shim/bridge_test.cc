// Tests the shim with the fake plugin of tests/pjrt_shim/fake_plugin.cc.
//
//   bridge_test CASE PLUGIN
//
// A process can use only one plugin, so each case is a separate test.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/pjrt_shim/fake_plugin.h"
#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"
#include "torch_xla_ext/csrc/pjrt_shim/failed_start.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"
#include "torch_xla_ext/csrc/pjrt_shim/targets.h"
#include "torch_xla_ext/csrc/pjrt_shim/topology.h"
#include "xla/pjrt/c/pjrt_c_api_profiler_extension.h"

namespace {

using torch_xla_ext::TargetApi;
using torch_xla_ext::TargetFunctions;
using torch_xla_ext::pjrt_shim::Load;
using torch_xla_ext::pjrt_shim::RegisterTarget;
using torch_xla_ext::pjrt_shim::RegisterType;
using torch_xla_ext::pjrt_shim::SetCompileOptions;
using torch_xla_ext::pjrt_shim::TakesTargets;
using torch_xla_ext::pjrt_shim::TakesTraits;

int failures = 0;

#define EXPECT(condition)                                            \
  if (!(condition)) {                                                \
    std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, \
                 #condition);                                        \
    ++failures;                                                      \
  }

void ExpectText(int line, const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return;
  std::fprintf(stderr, "%s:%d: expected \"%s\" in \"%s\"\n", __FILE__, line,
               part.c_str(), text.c_str());
  ++failures;
}
#define EXPECT_TEXT(text, part) ExpectText(__LINE__, text, part)

// The text of what `function` throws; "" if it throws nothing.
std::string Thrown(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

FakeObservations* Observations(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<FakeObservations* (*)()>(
      dlsym(library, "GetFakeObservations"))();
}

std::string Text(const PJRT_Api* api, PJRT_Error* error) {
  PJRT_Error_Message_Args message = {};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::string text(message.message, message.message_size);
  PJRT_Error_Destroy_Args destroy = {};
  destroy.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  api->PJRT_Error_Destroy(&destroy);
  return text;
}

template <typename Args>
Args Zero(size_t struct_size) {
  Args args = {};
  args.struct_size = struct_size;
  return args;
}
#define ARGS(name) Zero<name>(name##_STRUCT_SIZE)

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
  PJRT_LoadedExecutable* executable =
      Compiled("custom-call to __cudnn$fmhaSoftmax");
  EXPECT(TransfersWhileRunning(seen, executable) == 0);
  EXPECT(seen->polls == 3);  // it was waited for
  // The next ones share the device, and so does every other program.
  EXPECT(TransfersWhileRunning(seen, executable) == 1);
  EXPECT(seen->polls == 0);
  EXPECT(TransfersWhileRunning(seen, Compiled("add")) == 1);
  EXPECT(seen->transfers == 3);
}

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

void ExpectRefusal(const std::string& path,
                   const std::vector<std::string>& parts) {
  const std::string text = Thrown([&] { Load(path); });
  EXPECT_TEXT(text, path);
  for (const std::string& part : parts) EXPECT_TEXT(text, part);
  EXPECT(GetPjrtApi() == nullptr);
}

// A bytes field with a number below 16 and a short value.
std::string Field(int number, const std::string& value) {
  return std::string{static_cast<char>(number << 3 | 2),
                     static_cast<char>(value.size())} +
         value;
}

// An entry of a map, which is field 3.
std::string Entry(const std::string& key, const std::string& value) {
  return Field(3, Field(1, key) + Field(2, value));
}

void TestCanonical(const std::string&) {
  using torch_xla_ext::pjrt_shim::Canonical;
  const std::string a = Entry("a", "9"), b = Entry("b", "8");
  const std::string number = "\x08\x96\x01", name = Field(2, "sm_90");
  EXPECT(Canonical(number + b + a + name) == number + a + b + name);
  // Two adjacent maps, and one inside another's value.
  const std::string other = Field(4, Field(1, "z") + Field(2, "0"));
  EXPECT(Canonical(b + a + other) == a + b + other);
  EXPECT(Canonical(Entry("k", b + a)) == Entry("k", a + b));
  EXPECT(Canonical(Entry("k", b + a) + a) == a + Entry("k", a + b));
  // Lists keep their order, and so do entries that are separated by another
  // field.
  const std::string list = Field(3, "y") + Field(3, "x");
  EXPECT(Canonical(list) == list);
  EXPECT(Canonical(b + name + a) == b + name + a);
  // Fixed-length numbers.
  const std::string fixed = std::string("\x0d\x12\x06\x0a\x01", 5) +
                            std::string("\x11\x01\x02\x03\x04\0\0\0\0", 9);
  EXPECT(Canonical(fixed + b + a) == fixed + a + b);
  // Anything that is not a message, or is truncated, is left unchanged.
  const std::string whole = b + a;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string part = whole.substr(0, size);
    EXPECT(Canonical(part) == part);
  }
  for (const std::string& text : {std::string("{\"a\": 1}"),
                                  std::string(99, '\xff'), std::string(1, '\0'),
                                  std::string("\x0a\xff\xff\xff\xff\xff\xff\xff"
                                              "\xff\xff\x01")}) {
    EXPECT(Canonical(text + whole) == text + whole);
  }
  std::string deep;
  for (int i = 0; i < 20; ++i) deep = Field(1, deep);
  EXPECT(Canonical(deep) == deep);
}

void TestTopology(const std::string& path) {
  Load(path);
  std::string before;
  for (int i = 0; i < 3; ++i) {
    auto args = ARGS(PJRT_TopologyDescription_Serialize_Args);
    EXPECT(GetPjrtApi()->PJRT_TopologyDescription_Serialize(&args) == nullptr);
    const std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
    EXPECT(bytes.size() == 16);
    EXPECT(i == 0 || bytes == before);
    before = bytes;
    args.serialized_topology_deleter(args.serialized_topology);
    EXPECT(Observations(path)->topologies == 0);
  }
}

const std::map<std::string, std::function<void(const std::string&)>> kCases = {
    {"equal", [](const std::string& path) { TestCalls(path, false); }},
    {"newer", [](const std::string& path) { TestCalls(path, true); }},
    {"threads", TestThreads},
    {"compile_options", TestCompileOptions},
    {"first_execution", TestFirstExecution},
    {"failed_start", TestFailedStart},
    {"targets", [](const std::string& path) { TestTargets(path, false); }},
    {"targets_traits",
     [](const std::string& path) { TestTargets(path, true); }},
    {"canonical", TestCanonical},
    {"topology", TestTopology},
    {"profiler_equal", TestProfiler},
    {"profiler_newer", TestProfiler},
    {"profiler_none", TestNoProfiler},
    {"older",
     [](const std::string& path) {
       ExpectRefusal(path, {"has PJRT API 0.69", "needs 0.70 or newer",
                            "jax-cuda13-pjrt"});
     }},
    {"major",
     [](const std::string& path) {
       ExpectRefusal(path, {"has PJRT API 1.2", "of 0.x"});
     }},
    {"no_extension",
     [](const std::string& path) {
       ExpectRefusal(path, {"has no custom-call extension"});
     }},
    {"named_value",
     [](const std::string& path) {
       ExpectRefusal(path, {"PJRT_NamedValue has 64 bytes", "has 56"});
     }},
    {"short_table",
     [](const std::string& path) {
       ExpectRefusal(path, {"its table of functions has 900 bytes"});
     }},
    {"not_a_plugin",
     [](const std::string&) {
       ExpectRefusal("libm.so.6", {"does not export GetPjrtApi"});
       ExpectRefusal("/no/such/plugin.so",
                     {"cannot be loaded", "No such file"});
     }},
    {"second",
     [](const std::string& path) {
       EXPECT(Thrown([&] { Load(path); }).empty());
       EXPECT(Thrown([&] { Load(path); }).empty());
       EXPECT_TEXT(Thrown([] { Load("/other.so"); }),
                   "the process uses " + path + " already");
     }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto test = argc == 3 ? kCases.find(argv[1]) : kCases.end();
  if (test == kCases.end()) {
    std::fprintf(stderr, "usage: bridge_test CASE PLUGIN\n");
    return 2;
  }
  test->second(argv[2]);
  std::printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
