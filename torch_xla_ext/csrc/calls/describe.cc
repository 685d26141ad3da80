#include "torch_xla_ext/csrc/calls/describe.h"

#include <dlfcn.h>

#include <sstream>

namespace torch_xla_ext {

std::string Describe(const void* function) {
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

}  // namespace torch_xla_ext
