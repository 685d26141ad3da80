// Interposes on PjRtComputationClient::Compile: passes change the program
// (runtime_fixes/passes.h), and on the CPU, compilation fails before too many
// programs crash the process (runtime_fixes/memory_mappings.h).
// Programs can be compiled later (runtime_fixes/lowered.h) and made
// deterministic (runtime_fixes/determinism.h), those that gather a value are
// compiled once (runtime_fixes/gather_programs.h), and those whose results are
// not what aliases expect are compiled without these
// (runtime_fixes/replicated_aliases.h).
//
// The upstream binary calls it through a vtable, which refers to it by its
// symbol. The upstream function is called from here.

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"
#include "torch_xla_ext/csrc/runtime_fixes/determinism.h"
#include "torch_xla_ext/csrc/runtime_fixes/gather_programs.h"
#include "torch_xla_ext/csrc/runtime_fixes/lowered.h"
#include "torch_xla_ext/csrc/runtime_fixes/memory_mappings.h"
#include "torch_xla_ext/csrc/runtime_fixes/passes.h"
#include "torch_xla_ext/csrc/runtime_fixes/precision_settings.h"
#include "torch_xla_ext/csrc/runtime_fixes/replicated_aliases.h"

namespace torch_xla_ext {

// A std::vector; the caller provides the memory and destroys it.
struct Computations {
  ~Computations() {}
  void* begin;
  void* end;
  void* end_of_room;
};

// `instances` is a std::vector of a class that is not declared here; it is
// passed by address. torch_xla compiles one program at a time.
struct CompileInstances {
  char* begin = nullptr;
  char* end = nullptr;
  char* end_of_room = nullptr;
};

// The members of an instance after its XlaComputation.
struct CompileSettings {
  std::string device;
  std::vector<std::string> devices;
  const void* output_shape;  // unused
  bool parameter_is_tupled_arguments, is_sharded;
  bool allow_spmd_sharding_propagation_to_output, use_auto_spmd_partitioning;
  std::vector<int64_t> auto_spmd_mesh_shape, auto_spmd_mesh_ids;
  bool eager_mode;
};

// The program of the instance, which begins with an XlaComputation.
google::protobuf::MessageLite* ProgramOf(const CompileInstances& instances) {
  return reinterpret_cast<google::protobuf::MessageLite*>(
      instances.begin + layout::kComputationProtoOffset);
}

Computations Compile(void* client, CompileInstances* instances) __asm__(
    "_ZN9torch_xla7runtime21PjRtComputationClient7CompileESt6vectorINS0_17C"
    "omputationClient15CompileInstanceESaIS4_EE");

// Owns the objects that upstream's frame owned.
class OwnedInstances {
 public:
  explicit OwnedInstances(CompileInstances* instances)
      : instances_(std::exchange(*instances, CompileInstances())) {}
  ~OwnedInstances() {
    static_cast<xla::HloModuleProto*>(ProgramOf(instances_))->~HloModuleProto();
    reinterpret_cast<CompileSettings*>(instances_.end - sizeof(CompileSettings))
        ->~CompileSettings();
    ::operator delete(instances_.begin);
  }
  OwnedInstances(const OwnedInstances&) = delete;
  OwnedInstances& operator=(const OwnedInstances&) = delete;

  CompileInstances* get() { return &instances_; }

 private:
  CompileInstances instances_;
};

// The only element of `results`, which is destroyed.
torch::lazy::ComputationPtr TakeComputation(const Computations& results) {
  auto* const result = static_cast<torch::lazy::ComputationPtr*>(results.begin);
  torch::lazy::ComputationPtr computation = std::move(*result);
  result->~shared_ptr();
  ::operator delete(results.begin);
  return computation;
}

Computations OneComputation(torch::lazy::ComputationPtr computation) {
  void* const begin = ::operator new(sizeof(computation));
  void* const end =
      new (begin) torch::lazy::ComputationPtr(std::move(computation)) + 1;
  return {begin, end, end};
}

// Adds options to this thread's.
class AddedOptions {
 public:
  explicit AddedOptions(const std::string& added)
      : own_(pjrt_shim::CompileOptions()) {
    pjrt_shim::SetCompileOptions(added + own_);
  }
  ~AddedOptions() { pjrt_shim::SetCompileOptions(own_); }
  AddedOptions(const AddedOptions&) = delete;
  AddedOptions& operator=(const AddedOptions&) = delete;

 private:
  const std::string own_;
};

Computations Compile(void* client, CompileInstances* instances) {
  if (IsOnlyLowering()) {
    const auto owned = std::make_shared<OwnedInstances>(instances);
    StopLowered([client, owned] {
      return TakeComputation(Compile(client, owned->get()));
    });
  }
  static const auto upstream = torch_xla::UpstreamFunction(&Compile);
  const bool on_cpu = !pjrt::PjrtApi("cuda").ok();
  if (on_cpu) CheckMemoryMappings();
  const AddedOptions options(DeterminismOptions());
  google::protobuf::MessageLite* const program = ProgramOf(*instances);
  const std::string serialized = program->SerializeAsString();
  if (IsGatherProgram(serialized)) {
    return OneComputation(CompiledGatherProgram(serialized, [&] {
      return TakeComputation(upstream(client, instances));
    }));
  }
  if (const auto corrected =
          CorrectProgram(serialized, PrecisionSettings(), on_cpu)) {
    program->ParseFromString(*corrected);
  }
  try {
    return upstream(client, instances);
  } catch (const std::exception&) {
    const auto other = WithoutReplicatedAliases(program->SerializeAsString());
    if (!other) throw;
    program->ParseFromString(*other);
  }
  return upstream(client, instances);
}

}  // namespace torch_xla_ext
