// A function in words, for error messages.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_DESCRIBE_H_
#define TORCH_XLA_EXT_CSRC_CALLS_DESCRIBE_H_

#include <string>

namespace torch_xla_ext {

// "0x7f…", and the symbol and the library where they are known.
std::string Describe(const void* function);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_DESCRIBE_H_
