#include "torch_xla_ext/csrc/runtime_fixes/determinism.h"

#include <ATen/Context.h>

#include <cstdint>

#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

// Fields of CompileOptionsProto, of an entry of its map, and of
// OptionOverrideProto.
constexpr uint32_t kOverrides = 7, kName = 1, kValue = 2, kText = 1;

}  // namespace

std::string DeterminismOptions() {
  const at::Context& pytorch = at::globalContext();
  if (!pytorch.deterministicAlgorithms() ||
      pytorch.deterministicAlgorithmsWarnOnly()) {
    return "";
  }
  ProtobufMessage options, entry, value;
  value.SetBytes(kText, "True");
  entry.SetBytes(kName, "xla_gpu_exclude_nondeterministic_ops");
  entry.SetBytes(kValue, value.Serialize());
  options.SetBytes(kOverrides, entry.Serialize());
  return options.Serialize();
}

}  // namespace torch_xla_ext
