// XLA's registry of untyped targets, for a library of kernels that is loaded
// into a process without one. Kernels that are linked statically register their
// untyped entries when they are loaded; torch-tpu calls the FFI ones only,
// which Python registers by their symbols.
#include <string>

#include "xla/service/custom_call_target_registry.h"

namespace xla {

CustomCallTargetRegistry* CustomCallTargetRegistry::Global() {
  static auto& registry = *new CustomCallTargetRegistry;
  return &registry;
}

void CustomCallTargetRegistry::Register(const std::string&, void*,
                                        const std::string&) {}

}  // namespace xla
