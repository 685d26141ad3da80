// Registration of custom-call targets, with XLA and with a CUDA plugin.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_REGISTRATION_H_
#define TORCH_XLA_EXT_CSRC_CALLS_REGISTRATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/pjrt_bridge/targets.h"

namespace torch_xla_ext {

// The platforms that a target can be registered for, by XLA's names.
inline constexpr char kCudaPlatform[] = "CUDA";
inline constexpr char kHostPlatform[] = "Host";

// Throws std::invalid_argument unless `platform` is one of them.
void CheckPlatform(const std::string& platform);

// "untyped" or "ffi"; throws std::invalid_argument for anything else.
TargetApi ParseTargetApi(const std::string& api);

// The same of PJRT's number for it, 0 or 1.
TargetApi ParseTargetApi(int api_version);

// Registers `function` as the target `name`: an untyped one in the process's
// registry, where XLA:CPU looks its "Host" targets up, and a typed "Host" one
// with XLA's FFI. A "CUDA" target also goes to the client, now if it is made,
// else by ForwardTargets. May be called by static initialisers.
//
// Another function under the name takes its place in the calls that are traced
// from then on. XLA's registries keep the first function of a name for good, so
// that a later one is registered as "name#2", "name#3" and so on, and calls say
// that (CurrentName). Programs that were compiled before keep their function.
//
// Throws std::invalid_argument for an empty name or one with a '#', and
// std::runtime_error if XLA or the plugin refuses.
void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform,
                    TargetApi api = TargetApi::kUntyped);

// What the HLO says for a call of `name`: the name under which XLA knows the
// function that was registered last. A name that ends in "#1", "#2" and so on
// means the function that was registered first, second and so on.
std::string CurrentName(const std::string& name, const std::string& platform,
                        TargetApi api);

// The function that calls of `name` run; null if there is none.
void* CurrentFunction(const std::string& name, const std::string& platform,
                      TargetApi api);

// By which API calls of `name` are made that do not say one: typed where a
// typed function is registered, unless an untyped one has taken another's place
// since. Only typed calls run inside a CUDA graph.
TargetApi DefaultApi(const std::string& name, const std::string& platform);

// A number that every registration changes. What was derived from the targets
// before holds while it is the same.
uint64_t NumRegistrations();

// The platform of the device that this process uses, by PJRT_DEVICE.
const char* CurrentPlatform();

// Gives the "CUDA" targets to a client of `device_type`, if that is CUDA: to
// its PJRT plugin, which has registries of its own, or if it has none because
// XLA:GPU is linked into the process, to XLA's FFI. Called once, when the
// client has been made. Throws std::runtime_error if one is refused; a plugin
// that takes no targets gets none.
void ForwardTargets(const std::string& device_type, const PJRT_Api* plugin);

// The names of the targets that `platform` has, sorted, without those that
// XLA:CPU registers for itself. Typed ones are those that were registered here:
// XLA does not list them.
std::vector<std::string> RegisteredTargets(const std::string& platform,
                                           TargetApi api = TargetApi::kUntyped);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_REGISTRATION_H_
