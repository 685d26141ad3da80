// Formats the errors of upstream's XLA_CHECK as one paragraph, without the C++
// stack of 25 to 44 lines, and those of XLA_CHECK_OK as XLA's message.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CHECK_FAILED_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CHECK_FAILED_H_

#include <string>

namespace torch_xla_ext {

// `text` is the check's message. With PyTorch's TORCH_SHOW_CPP_STACKTRACES=1,
// errors keep their stacks.
std::string CheckFailedMessage(std::string text, const char* file, int line);

// `text` is "Non-OK-status: status.status()\nStatus: INVALID_ARGUMENT: …".
std::string CheckOkMessage(const std::string& text);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CHECK_FAILED_H_
