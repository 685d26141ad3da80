// What the PJRT bridge adds to a call: nanoseconds of a call of the fake
// plugin, directly, through the bridge as it is, and through the bridge with
// structures that the plugin wants longer (both the arguments and the execute
// options).
//
//   bazel run -c opt //benchmarks:bridge_overhead
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

namespace {

constexpr int kCalls = 1000000;
constexpr int kRepeats = 9;

double NanosecondsPerCall(const PJRT_Api* api, size_t extra) {
  // Room for the members that the fake plugin added, for the direct calls.
  struct {
    PJRT_ExecuteOptions structure;
    char more[64];
  } options = {};
  struct {
    PJRT_LoadedExecutable_Execute_Args structure;
    char more[64];
  } args = {};
  options.structure.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE + extra;
  args.structure.struct_size =
      PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE + extra;
  args.structure.options = &options.structure;
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) {
      if (api->PJRT_LoadedExecutable_Execute(&args.structure) != nullptr) {
        std::fprintf(stderr, "the fake plugin refuses the call\n");
        std::exit(1);
      }
    }
    const std::chrono::duration<double, std::nano> time =
        std::chrono::steady_clock::now() - begin;
    times.push_back(time.count() / kCalls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bridge_overhead libfake_newer.so\n");
    return 2;
  }
  const std::string path = argv[1];
  torch_xla_ext::pjrt_shim::Load(path);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto* direct =
      reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
  std::printf("direct          %6.1f ns\n", NanosecondsPerCall(direct, 16));
  std::printf("bridge          %6.1f ns\n",
              NanosecondsPerCall(GetPjrtApi(), 16));
  std::printf("bridge, widened %6.1f ns\n",
              NanosecondsPerCall(GetPjrtApi(), 0));
  return 0;
}
