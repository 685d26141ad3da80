// Gives XLA's dtype conversions the results of PyTorch's.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CONVERSIONS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CONVERSIONS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, in which some
// conversions go through another type; nothing if there are none to change.
//
// Masks are converted through bytes: XLA's simplifier replaces x *
// convert(mask) by select(mask, x, 0), which is 0 where the mask is false and x
// is NaN or infinite. PyTorch's product is NaN there.
//
// Floats are converted to integers of 8 and 16 bits through wider ones: PyTorch
// wraps, so that -1.0 is 255 in uint8; XLA saturates to 0.
//
// Scalars are rounded explicitly before they are converted to 16-bit floats.
// XLA:GPU removes a conversion to such floats and back, so 0.7 // 0.7 was 0 if
// the second operand was a float32 tensor without dimensions.
std::optional<std::string> CorrectConversions(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_CONVERSIONS_H_
