#include "torch_xla_ext/csrc/registry/text.h"

#include <dlfcn.h>

#include <sstream>

namespace torch_xla_ext {

std::string Quoted(std::string_view text) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte > 0x7e) {
      quoted += "\\x";
      quoted += kHexDigits[byte >> 4];
      quoted += kHexDigits[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string Described(const void* function) {
  std::ostringstream text;
  text << function;
  Dl_info info;
  if (dladdr(function, &info) != 0) {
    text << " (";
    if (info.dli_sname != nullptr) text << info.dli_sname << " in ";
    text << info.dli_fname << ")";
  }
  return text.str();
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) {
    if (!joined.empty()) joined += ", ";
    joined += part;
  }
  return joined;
}

}  // namespace torch_xla_ext
