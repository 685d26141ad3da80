#include "torch_xla_ext/csrc/runtime_fixes/check_failed.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace torch_xla_ext {

std::string CheckFailedMessage(std::string text, const char* file, int line) {
  const char* const shows_stacks = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (shows_stacks == nullptr || std::strcmp(shows_stacks, "1") != 0) {
    // The message of the check follows the stack.
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
  // A message with several lines ends with a newline, as upstream's do.
  const char* const separator =
      text.find('\n') == std::string::npos ? " (" : "\n(";
  return text + separator + file + ":" + std::to_string(line) + ")";
}

std::string CheckOkMessage(const std::string& text) {
  const std::string before = "\nStatus: ", wrong_call = "INVALID_ARGUMENT: ";
  const size_t begin = text.find(before);
  if (text.rfind("Non-OK-status: ", 0) != 0 || begin == std::string::npos) {
    return text;
  }
  const std::string status = text.substr(begin + before.size());
  return status.rfind(wrong_call, 0) == 0 ? status.substr(wrong_call.size())
                                          : status;
}

}  // namespace torch_xla_ext
