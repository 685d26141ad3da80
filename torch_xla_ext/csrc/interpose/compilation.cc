// Interposes on PjRtComputationClient::Compile: reductions become those of
// PyTorch (runtime_fixes/reductions.h), and on the CPU, it fails before too
// many programs crash the process (runtime_fixes/memory_mappings.h).
//
// The upstream binary calls it through a vtable, which refers to it by its
// symbol. The upstream function is called from here.
#include <dlfcn.h>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/runtime_fixes/memory_mappings.h"
#include "torch_xla_ext/csrc/runtime_fixes/reductions.h"

namespace torch_xla_ext {

// A std::vector; the caller provides the memory and destroys it.
struct Computations {
  ~Computations() {}
  void* begin;
  void* end;
  void* end_of_room;
};

#define COMPILE                                                            \
  "_ZN9torch_xla7runtime21PjRtComputationClient7CompileESt6vectorINS0_17C" \
  "omputationClient15CompileInstanceESaIS4_EE"

// `instances` is a std::vector of a class that is not declared here; it is
// passed by address. torch_xla compiles one program at a time.
struct CompileInstances {
  char* begin;
};

// The program of the instance, which begins with an XlaComputation.
google::protobuf::MessageLite* ProgramOf(const CompileInstances& instances) {
  return reinterpret_cast<google::protobuf::MessageLite*>(
      instances.begin + layout::kComputationProtoOffset);
}

Computations Compile(void* client,
                     CompileInstances* instances) __asm__(COMPILE);

Computations Compile(void* client, CompileInstances* instances) {
  using Upstream = Computations (*)(void*, CompileInstances*);
  static const auto upstream =
      reinterpret_cast<Upstream>(dlsym(RTLD_NEXT, COMPILE));
  const bool on_cpu = !pjrt::PjrtApi("cuda").ok();
  if (on_cpu) CheckMemoryMappings();
  google::protobuf::MessageLite* const program = ProgramOf(*instances);
  const auto corrected = CorrectReductions(program->SerializeAsString());
  if (corrected) program->ParseFromString(*corrected);
  return upstream(client, instances);
}

#undef COMPILE

}  // namespace torch_xla_ext
