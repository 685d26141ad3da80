// Keeps XLA's partitioner from sharing the margins of windows.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SHARED_WINDOWS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SHARED_WINDOWS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, in which pads
// and window reductions with different margins have operands of their own, if
// it has shardings. Returns nothing if there are none to change.
//
// Where devices divide a tensor, the partitioner gives each device's part a
// margin: values of its neighbors, and at the edges the value that the
// operation pads with or begins with. It caches the result by operand and
// window, but not by that value. So `x.cumprod(0)` was zero after
// `x.cumsum(0)`, average pooling had the -inf of maximum pooling, and a second
// `pad` had the first one's value. An optimization barrier makes the operand
// another one.
std::optional<std::string> SeparateWindows(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SHARED_WINDOWS_H_
