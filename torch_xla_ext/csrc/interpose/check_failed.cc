// Makes the error of upstream's XLA_CHECK one paragraph, without the C++ stack
// of 25 to 44 lines that is in it.
//
// This works because the upstream binary calls the function through its PLT.
// With PyTorch's TORCH_SHOW_CPP_STACKTRACES=1, errors have their stacks.
#include <cstddef>
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
    // What the check says follows the stack.
    const std::string end_of_stack = "*** End stack trace ***";
    const size_t begin = text.find("*** Begin stack trace ***");
    const size_t end = text.find(end_of_stack);
    const std::string says =
        begin == std::string::npos || end == std::string::npos
            ? ""
            : text.substr(end + end_of_stack.size());
    text = text.substr(0, begin);
    text = text.substr(0, text.find_last_not_of(" \n") + 1);
    const size_t first = says.find_first_not_of(" \n");
    if (first != std::string::npos) text += ": " + says.substr(first);
    text = text.substr(0, text.find_last_not_of(" \n") + 1);
  }
  // A text of several lines ends with a line of its own, as upstream's.
  const char* const separator =
      text.find('\n') == std::string::npos ? " (" : "\n(";
  std::ostringstream message;
  message << text << separator << file_ << ':' << line_ << ')';
  throw std::runtime_error(message.str());
}

}  // namespace torch_xla::runtime::internal
