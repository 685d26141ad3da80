// Formats the error of upstream's XLA_CHECK as one paragraph, without its C++
// stack of 25 to 44 lines.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CHECK_FAILED_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CHECK_FAILED_H_

#include <string>

namespace torch_xla_ext {

// `text` is the check's message. With PyTorch's TORCH_SHOW_CPP_STACKTRACES=1,
// errors keep their stacks.
std::string CheckFailedMessage(std::string text, const char* file, int line);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CHECK_FAILED_H_
