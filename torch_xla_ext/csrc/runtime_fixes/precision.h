// Makes all products as precise as torch_xla.backends.set_mat_mul_precision
// says.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_H_

#include <cstdint>
#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, in which each
// product and convolution has a precision: its own or `precision`, a value of
// xla::PrecisionConfig::Precision. Returns nothing if none is added.
//
// torch_xla passes the precision for most products, but the default for those
// of einsum and for gradients of convolutions: XLA:GPU computed these in TF32.
std::optional<std::string> SetPrecision(const std::string& module,
                                        uint64_t precision);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_H_
