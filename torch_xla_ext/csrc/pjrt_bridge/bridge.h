// A PJRT plugin in front of the real one.
//
// torch_xla 2.8.1 speaks version 0.70 of the PJRT C API. A newer plugin refuses
// some of its argument structures for being too short; the bridge lengthens
// them (widening.h). Its table of profiler functions is too long for 2.8.1; the
// bridge shortens it (profiler.h).
//
// XLA loads a plugin by the path of a library that exports GetPjrtApi: give it
// the path of the library that this is linked into, after Load.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_BRIDGE_H_
#define TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_BRIDGE_H_

#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_bridge {

// The API that torch_xla 2.8.1 was built with: the oldest that a plugin may
// have.
inline constexpr int kOldestMinor = 70;

struct PluginInfo {
  std::string path;
  int major;
  int minor;
};

// Loads the plugin at `path` and checks that torch_xla 2.8.1 can use it. The
// same plugin again is accepted. Throws std::runtime_error, whose text says
// what was found and what is needed, for anything else: an unloadable library,
// an older or incompatible API, no custom-call extension, a second plugin.
const PluginInfo& Load(const std::string& path);

}  // namespace torch_xla_ext::pjrt_bridge

// What XLA calls. Null before Load.
extern "C" const PJRT_Api* GetPjrtApi();

#endif  // TORCH_XLA_EXT_CSRC_PJRT_BRIDGE_BRIDGE_H_
