// A PJRT plugin in front of the real one.
//
// torch_xla 2.8.1 speaks version 0.70 of the PJRT C API. A newer plugin refuses
// some of its argument structures for being too short; the shim lengthens
// them (struct_size_shim.h). Its table of profiler functions is too long
// for 2.8.1; the shim shortens it (profiler.h).
//
// XLA loads a plugin by the path of a library that exports GetPjrtApi: after
// Load, pass it the path of the library that this code is linked into.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_SHIM_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_SHIM_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// The minor version of the API that torch_xla 2.8.1 was built with: the oldest
// version that a plugin may have.
inline constexpr int kOldestMinor = 70;

struct PluginInfo {
  std::string path;
  int major;
  int minor;
};

// Loads the plugin at `path` and checks that torch_xla 2.8.1 can use it.
// Loading the same plugin again is allowed. Throws a std::runtime_error that
// says what was found and what is needed if the library cannot be loaded, the
// API is older or incompatible, the custom-call extension is missing, or
// another plugin has been loaded.
const PluginInfo& Load(const std::string& path);

}  // namespace torch_xla_ext::pjrt_shim

// Called by XLA. Returns null before Load.
extern "C" const PJRT_Api* GetPjrtApi();

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_SHIM_H_
