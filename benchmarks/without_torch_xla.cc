// The functions of torch_xla's binary that kernels need, for a library that is
// loaded without it: kernel_library.py.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "xla/service/custom_call_target_registry.h"

// A status is a text of at most 511 bytes here.
extern "C" __attribute__((visibility("default"))) void
XlaCustomCallStatusSetFailure(void* status, const char* message,
                              size_t message_len) {
  const size_t size = std::min<size_t>(message_len, 511);
  std::memcpy(status, message, size);
  static_cast<char*>(status)[size] = '\0';
}

// The kernels' entries are found by their symbols.
namespace xla {

CustomCallTargetRegistry* CustomCallTargetRegistry::Global() {
  static auto* registry = new CustomCallTargetRegistry;
  return registry;
}

void CustomCallTargetRegistry::Register(const std::string& symbol,
                                        void* address,
                                        const std::string& platform) {}

}  // namespace xla
