// Replaces the error messages of upstream's XLA_CHECK by those of
// runtime_fixes/check_failed.h. The upstream binary calls this function through
// its PLT.
#include "torch_xla_ext/csrc/runtime_fixes/check_failed.h"

#include <ostream>
#include <sstream>
#include <stdexcept>

namespace torch_xla::runtime::internal {

// As in torch_xla/csrc/runtime/tf_logging.h.
class ErrorGenerator {
 public:
  ErrorGenerator(const char* file, int line) : file_(file), line_(line) {}
  void operator&(const std::basic_ostream<char>& stream) const;

 private:
  const char* file_ = nullptr;
  int line_ = -1;
};

void ErrorGenerator::operator&(const std::basic_ostream<char>& stream) const {
  throw std::runtime_error(torch_xla_ext::CheckFailedMessage(
      dynamic_cast<const std::basic_ostringstream<char>&>(stream).str(), file_,
      line_));
}

}  // namespace torch_xla::runtime::internal
