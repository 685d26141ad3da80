// Formats text for error messages and IR dumps.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_TEXT_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace torch_xla_ext {

// `text` in double quotes; bytes that are not printable ASCII, quotes and
// backslashes are escaped, so that any payload reads on one line.
std::string Quoted(std::string_view text);

// Describes a function: "0x7f…", and its symbol and library if they are known.
std::string Described(const void* function);

// "a, b, c".
std::string Joined(const std::vector<std::string>& parts);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_TEXT_H_
