#include "torch_xla_ext/csrc/pjrt_shim/partitioners.h"

#include <stdexcept>

#include "torch_xla_ext/csrc/pjrt_shim/errors.h"
#include "torch_xla_ext/csrc/pjrt_shim/extensions.h"

namespace torch_xla_ext::pjrt_shim {
namespace {

struct RegisterPartitionerArgs {
  size_t struct_size;
  const char* name;
  size_t name_size;
  PartitionerCallbacks* callbacks;
};

// The extension of type PJRT_Extension_Type_Custom_Partitioner; a further
// member is not used.
struct PartitionerExtension {
  PJRT_Extension_Base base;
  PJRT_Error* (*register_partitioner)(RegisterPartitionerArgs* args);
};

}  // namespace

void RegisterPartitioner(const PJRT_Api* plugin, const std::string& name,
                         PartitionerCallbacks* callbacks) {
  const auto* extension = FindExtension<PartitionerExtension>(
      plugin, PJRT_Extension_Type_Custom_Partitioner);
  if (extension == nullptr) {
    throw std::runtime_error(
        "the PJRT plugin has no custom-partitioner extension, without which "
        "XLA cannot divide kernels among devices; install jax-cuda12-pjrt or "
        "jax-cuda13-pjrt 0.6.2 or newer");
  }
  RegisterPartitionerArgs args = {};
  args.struct_size = sizeof(args);
  args.name = name.data();
  args.name_size = name.size();
  args.callbacks = callbacks;
  if (PJRT_Error* error = extension->register_partitioner(&args)) {
    throw std::runtime_error("the PJRT plugin refuses the partitioner of \"" +
                             name + "\": " + TakeErrorText(plugin, error));
  }
}

}  // namespace torch_xla_ext::pjrt_shim
