// Registration of custom-call targets, with XLA and with a GPU plugin.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRATION_H_
#define TORCH_XLA_EXT_CSRC_REGISTRATION_H_

#include <string>
#include <vector>

#include "torch_xla_ext/csrc/pjrt_bridge/bridge.h"

namespace torch_xla_ext {

// The platforms that a target can be registered for, by XLA's names.
inline constexpr char kCudaPlatform[] = "CUDA";
inline constexpr char kHostPlatform[] = "Host";

// Throws std::invalid_argument unless `platform` is one of them.
void CheckPlatform(const std::string& platform);

using pjrt_bridge::TargetApi;

// "untyped" or "ffi"; throws std::invalid_argument for anything else.
TargetApi ParseTargetApi(const std::string& api);

// The same of PJRT's number for it, 0 or 1.
TargetApi ParseTargetApi(int api_version);

// Registers `function` as the target `name`: an untyped one in the process's
// registry, where XLA:CPU looks its "Host" targets up, and a typed "Host" one
// with XLA's FFI. A "CUDA" target also goes to the GPU plugin, now if it is
// loaded, else by LoadPlugin. May be called by static initialisers.
//
// The same function under the same name is accepted again; another function is
// not, and std::invalid_argument names both (XLA's own answer is std::exit).
// Throws std::runtime_error if XLA or the plugin refuses.
void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform,
                    TargetApi api = TargetApi::kUntyped);

// Loads the GPU plugin at `path` and gives it all "CUDA" targets. Throws as
// pjrt_bridge::Load and pjrt_bridge::RegisterTarget do.
const pjrt_bridge::PluginInfo& LoadPlugin(const std::string& path);

// Whether XLA has such a target; an untyped one may be XLA's own.
bool IsRegistered(const std::string& name, const std::string& platform,
                  TargetApi api);

// The names of the targets that `platform` has, sorted, without those that
// XLA:CPU registers for itself. Typed ones are those that were registered here:
// XLA does not list them.
std::vector<std::string> RegisteredTargets(const std::string& platform,
                                           TargetApi api = TargetApi::kUntyped);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRATION_H_
