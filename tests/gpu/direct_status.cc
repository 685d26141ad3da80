// Stands in for torch_xla where tests/gpu/direct.py calls kernels without it:
// keeps the text of the last failure.
#include <cstddef>
#include <string>

namespace {
std::string& Text() {
  static std::string& text = *new std::string();
  return text;
}
}  // namespace

extern "C" {
void XlaCustomCallStatusSetFailure(void*, const char* message, size_t size) {
  Text().assign(message, size);
}
const char* LastError() { return Text().c_str(); }
void ClearError() { Text().clear(); }
}
