// The kernels that are linked into this library. Static initialisers of
// include/torch_xla_ext/kernel.h add them when the library is loaded.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_STATIC_KERNELS_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_STATIC_KERNELS_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace torch_xla_ext {

// Registers all FFI entries of these kernels; XLA's own macro has registered
// the untyped ones. Throws like RegisterTarget, and std::runtime_error if a
// kernel's two platforms were compiled from different definitions.
void RegisterStaticKernels();

// The kernels' schemas, by target: SchemaText() of
// include/torch_xla_ext/untyped_payload.h.
std::map<std::string, std::string> StaticKernelSchemas();

// The kernels' size functions (sizes.h): target, the size's name, and the
// address.
std::vector<std::tuple<std::string, std::string, uintptr_t>>
StaticKernelSizes();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_STATIC_KERNELS_H_
