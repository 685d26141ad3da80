// Registration of custom-call targets at run time.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRATION_H_
#define TORCH_XLA_EXT_CSRC_REGISTRATION_H_

#include <string>
#include <vector>

namespace torch_xla_ext {

// The platforms that a target can be registered for, by XLA's names.
inline constexpr char kCudaPlatform[] = "CUDA";
inline constexpr char kHostPlatform[] = "Host";

// Throws std::invalid_argument unless `platform` is one of them.
void CheckPlatform(const std::string& platform);

// Puts an untyped target into the process's registry, where XLA:CPU looks its
// "Host" targets up, and from which "CUDA" targets go to a GPU plugin. The same
// function under the same name is accepted again; another function is not, and
// std::invalid_argument names both (XLA's own answer is std::exit).
void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform);

// The names of the targets that `platform` has, sorted.
std::vector<std::string> RegisteredTargets(const std::string& platform);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRATION_H_
