// Registers custom-call targets with XLA and with a CUDA plugin.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_REGISTRATION_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_REGISTRATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/pjrt_shim/targets.h"
#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext {

// The platforms that a target can be registered for, by XLA's names.
inline constexpr char kCudaPlatform[] = "CUDA";
inline constexpr char kHostPlatform[] = "Host";

// Throws std::invalid_argument unless `platform` is one of these.
void CheckPlatform(const std::string& platform);

// "untyped" or "ffi"; throws std::invalid_argument for anything else.
TargetApi ParseTargetApi(const std::string& api);

// The same for PJRT's number of an API, 0 or 1.
TargetApi ParseTargetApi(int api_version);

// Registers `function` as the target `name`: an untyped target in the process's
// registry, where XLA:CPU looks up its "Host" targets, and an FFI "Host"
// target with XLA's FFI. A "CUDA" target is also registered with the client: at
// once if the client exists, else by ForwardTargets. May be called by static
// initialisers.
//
// Another function under the same name replaces it in the calls that are traced
// from then on. XLA's registries never replace the first function of a name, so
// a later one is registered as "name#2", "name#3" and so on, and calls use that
// name (CurrentName). Programs that were compiled before keep their function.
//
// Throws std::invalid_argument for a name that is empty, contains '#' or
// belongs to XLA's compiler (builtin_targets.h), and std::runtime_error if XLA
// or the plugin refuses the target.
void RegisterTarget(const std::string& name, const TargetFunctions& functions,
                    const std::string& platform, TargetApi api);

// The same for a function that has no other stages.
void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform,
                    TargetApi api = TargetApi::kUntyped);

// Registers the type with this id for the states of handlers for `platform`, as
// RegisterTarget registers a target. If `id` is 0, XLA or the plugin assigns
// it. `deleter`, which may be null, destroys the states that handlers of XLA
// FFI 0.2 or newer set in the plugin. Does nothing if the type is already
// registered, under any name.
//
// Throws std::invalid_argument for an empty name, a null `id`, or the name of
// another type, and std::runtime_error as RegisterTarget does.
void RegisterFfiType(const std::string& name, XLA_FFI_TypeId* id,
                     pjrt_shim::Deleter* deleter, const std::string& platform);

// The target's name in the HLO of a call of `name`: the name under which XLA
// knows the function that was registered last. A name that ends in "#1", "#2"
// and so on selects the function that was registered first, second and so on.
std::string CurrentName(const std::string& name, const std::string& platform,
                        TargetApi api);

// The function that calls of `name` run, `execute` of an FFI target; null if
// there is none.
void* CurrentFunction(const std::string& name, const std::string& platform,
                      TargetApi api);

// Throws std::invalid_argument if calls of `name` would reach XLA's compiler or
// one of its helpers instead of a kernel.
void CheckIsNotXlas(const std::string& name, const std::string& platform,
                    TargetApi api);

// The API for calls of `name` that specify none: FFI if an FFI function is
// registered, unless an untyped function was registered again after it. Only
// FFI calls run inside a CUDA graph.
TargetApi DefaultApi(const std::string& name, const std::string& platform);

// A number that changes with every registration. Anything derived from the
// targets is valid as long as the number stays the same.
uint64_t NumRegistrations();

// The platform of the device that this process uses, by PJRT_DEVICE.
const char* CurrentPlatform();

// Registers the "CUDA" types and targets with a client of `device_type`, if
// that is CUDA: with its PJRT plugin, which has its own registries, or, if
// there is no plugin because XLA:GPU is linked into the process, with XLA's
// FFI. Called once, when the client has been made. Throws std::runtime_error if
// a target is rejected; a plugin that does not accept targets receives none.
void ForwardTargets(const std::string& device_type, const PJRT_Api* plugin);

// The PJRT plugin of the client for CUDA; null if there is no such client, or
// none with a plugin.
const PJRT_Api* ClientPlugin();

// The names of the targets of `platform`, sorted, without those that XLA:CPU
// registers for itself. Of the FFI targets, only those registered here: XLA
// does not list its own.
std::vector<std::string> RegisteredTargets(const std::string& platform,
                                           TargetApi api = TargetApi::kUntyped);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_REGISTRATION_H_
