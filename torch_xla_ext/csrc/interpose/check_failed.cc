// Makes the error of upstream's XLA_CHECK one paragraph, without the C++ stack
// of 25 to 44 lines that its message ends with.
//
// This works because the upstream binary calls the function through its PLT.
// With PyTorch's TORCH_SHOW_CPP_STACKTRACES=1, errors have their stacks.
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

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
  std::string text =
      dynamic_cast<const std::basic_ostringstream<char>&>(stream).str();
  const char* const shows_stacks = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (shows_stacks == nullptr || std::strcmp(shows_stacks, "1") != 0) {
    text = text.substr(0, text.find("*** Begin stack trace ***"));
    text = text.substr(0, text.find_last_not_of(" \n") + 1);
  }
  std::ostringstream message;
  message << text << " (" << file_ << ':' << line_ << ')';
  throw std::runtime_error(message.str());
}

}  // namespace torch_xla::runtime::internal
