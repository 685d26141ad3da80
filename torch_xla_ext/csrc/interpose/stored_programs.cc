// Interposes on functions for stored programs
// (runtime_fixes/stored_programs.h).
//
// PjRtComputationClient::DeserializeComputation loads a program in two steps,
// DeserializeExecutable and Load. Neither a plugin's client nor the CPU's
// implements them: they inherit PjRtClient's, which return an error. Both
// clients do implement LoadSerializedExecutable, which does the two steps in
// one. Here the first step does both, and the second passes its result on.
//
// PjRtClient's functions are inlined into DeserializeComputation for clients
// that inherit them, so interposing on their symbols has no effect. Instead the
// client's vtable is replaced by a copy with two replaced functions.
//
// HashCompilationEnv and DeserializeComputation are called through a vtable,
// which refers to them by their symbols. The upstream functions are called from
// here.
#include "torch_xla_ext/csrc/runtime_fixes/stored_programs.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <torch/csrc/lazy/backend/lowering_context.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"
#include "torch_xla_ext/csrc/runtime_fixes/determinism.h"
#include "torch_xla_ext/csrc/runtime_fixes/memory_mappings.h"

namespace torch_xla_ext {
namespace {

using layout::kDeserializeExecutableSlot;
using layout::kLoadSerializedExecutableSlot;
using layout::kLoadSlot;

using Program = absl::StatusOr<void*>;  // of a std::unique_ptr

// All zero by default.
struct LoadOptions {
  alignas(8) char storage[layout::kLoadOptionsSize] = {};
};

// Virtual functions of XLA's client, declared as free functions. A
// std::optional<CompileOptions> is passed by address, and so is a
// std::unique_ptr.
Program DeserializeExecutable(void* client, std::string_view serialized,
                              void* compile_options) {
  using LoadSerializedExecutable =
      Program (*)(void*, std::string_view, void*, const LoadOptions&);
  void** const functions = *static_cast<void***>(client);
  const auto load = reinterpret_cast<LoadSerializedExecutable>(
      functions[kLoadSerializedExecutableSlot]);
  return load(client, serialized, compile_options, LoadOptions());
}

Program Load(void* /*client*/, void** program,
             const LoadOptions& /*load_options*/) {
  return Program(std::exchange(*program, nullptr));
}

// Installs the two functions in `client`, if it inherits PjRtClient's.
void MakeLoadable(void* client) {
  const void* inherited =
      dlsym(RTLD_NEXT,
            "_ZN3xla10PjRtClient21DeserializeExecutableESt17basic_string_viewI"
            "cSt11char_traitsIcEESt8optionalINS_14CompileOptionsEE");
  void**& functions = *static_cast<void***>(client);
  if (functions[kDeserializeExecutableSlot] != inherited) return;
  // Two words of class information precede the functions in a vtable.
  constexpr size_t kWordsBefore = 2;
  Dl_info info;
  void* extra = nullptr;
  if (dladdr1(functions, &info, &extra, RTLD_DL_SYMENT) == 0 ||
      extra == nullptr) {
    return;
  }
  const size_t words =
      static_cast<const ElfW(Sym)*>(extra)->st_size / sizeof(void*);
  // The client is never destroyed.
  auto* const table = new void*[words];
  std::copy_n(functions - kWordsBefore, words, table);
  void** const own = table + kWordsBefore;
  own[kDeserializeExecutableSlot] =
      reinterpret_cast<void*>(&DeserializeExecutable);
  own[kLoadSlot] = reinterpret_cast<void*>(&Load);
  functions = own;
}

}  // namespace
}  // namespace torch_xla_ext

namespace torch_xla::runtime {

std::shared_ptr<ComputationClient::Computation>
PjRtComputationClient::DeserializeComputation(const std::string& serialized) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::DeserializeComputation);
  static std::once_flag once;
  std::call_once(once, [this] {
    char* const client = reinterpret_cast<char*>(this) +
                         torch_xla_ext::layout::kPjRtClientOffset;
    torch_xla_ext::MakeLoadable(*reinterpret_cast<void**>(client));
  });
  const bool on_cpu = !pjrt::PjrtApi("cuda").ok();
  if (on_cpu) torch_xla_ext::CheckMemoryMappings();
  auto program = upstream(this, serialized);
  if (program != nullptr && on_cpu) {
    // torch::lazy::Computation is the first base class.
    const auto* const base =
        reinterpret_cast<const torch::lazy::Computation*>(program.get());
    if (torch_xla_ext::HasUntypedCalls(base->to_string())) return nullptr;
  }
  return program;
}

torch::lazy::hash_t PjRtComputationClient::HashCompilationEnv() {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::HashCompilationEnv);
  static const torch::lazy::hash_t compiler = [] {
    const auto plugin = pjrt::PjrtApi("cuda");
    return torch_xla_ext::CompilerHash(plugin.ok() ? *plugin : nullptr);
  }();
  // This hash is also part of the keys of programs in memory.
  const std::string options = torch_xla_ext::DeterminismOptions() +
                              torch_xla_ext::pjrt_shim::CompileOptions();
  return torch::lazy::HashCombine(
      torch::lazy::HashCombine(upstream(this), compiler),
      torch::lazy::DataHash(options.data(), options.size()));
}

}  // namespace torch_xla::runtime
