// For check scripts that call a kernel without torch_xla: a status is a text of
// at most 512 bytes.
#include <algorithm>
#include <cstddef>
#include <cstring>

extern "C" __attribute__((visibility("default"))) void
XlaCustomCallStatusSetFailure(void* status, const char* message,
                              size_t message_len) {
  const size_t size = std::min<size_t>(message_len, 511);
  std::memcpy(status, message, size);
  static_cast<char*>(status)[size] = '\0';
}
