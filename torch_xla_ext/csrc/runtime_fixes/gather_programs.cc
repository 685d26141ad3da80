#include "torch_xla_ext/csrc/runtime_fixes/gather_programs.h"

#include <mutex>
#include <string_view>
#include <unordered_map>

#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

// Field numbers of HloModuleProto.
constexpr uint32_t kName = 1;
// As many as torch_xla caches of its own programs.
constexpr size_t kMaxPrograms = 1024;

struct Programs {
  std::mutex mutex;
  std::unordered_map<std::string, torch::lazy::ComputationPtr> compiled;
};

Programs& GetPrograms() {
  static auto* const programs = new Programs;  // threads read until the end
  return *programs;
}

}  // namespace

bool IsGatherProgram(const std::string& program) {
  const std::string_view prefix = "ReplicateShardedData.";
  return ProtobufMessage(program).Bytes(kName).substr(0, prefix.size()) ==
         prefix;
}

torch::lazy::ComputationPtr CompiledGatherProgram(
    const std::string& program,
    const std::function<torch::lazy::ComputationPtr()>& compile) {
  Programs& programs = GetPrograms();
  {
    const std::lock_guard<std::mutex> lock(programs.mutex);
    const auto found = programs.compiled.find(program);
    if (found != programs.compiled.end()) return found->second;
  }
  // Compile without the lock, so that other threads can read other values
  // meanwhile.
  const torch::lazy::ComputationPtr compiled = compile();
  const std::lock_guard<std::mutex> lock(programs.mutex);
  if (programs.compiled.size() >= kMaxPrograms) programs.compiled.clear();
  programs.compiled[program] = compiled;
  return compiled;
}

}  // namespace torch_xla_ext
