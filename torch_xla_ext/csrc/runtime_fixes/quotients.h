// Keeps quotients of quotients from overflowing.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_QUOTIENTS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_QUOTIENTS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, in which XLA
// does not simplify quotients of quotients; nothing if there are none.
//
// XLA makes a / (b * c) of a / b / c, and similar products of a / (b / c). They
// overflow where the quotients do not: 1e25 / 1e25 / 1e25 was 0 in float32. So
// an operand q that is a quotient is replaced by `q != q ? q + q : q`, which is
// q, also for NaN. XLA fuses that.
std::optional<std::string> SeparateQuotients(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_QUOTIENTS_H_
