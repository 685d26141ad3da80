// Makes all products as precise as the settings of torch_xla and PyTorch say.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_H_

#include <cstdint>
#include <optional>
#include <string>

namespace torch_xla_ext {

// The precisions, values of xla::PrecisionConfig::Precision, of products and
// convolutions that have none of their own. 0 is XLA's default: XLA:GPU then
// multiplies float32 in TF32.
struct Precisions {
  uint64_t float32_product = 0, float32_convolution = 0;  // and complex64's
  uint64_t other = 0;                                     // of other dtypes
};

// Returns the program `module`, a serialized xla::HloModuleProto, in which each
// product and convolution has a precision: its own or that of `precisions`.
// Returns nothing if none is added.
//
// torch_xla passes a precision for most products, but the default for those of
// einsum and for gradients of convolutions.
std::optional<std::string> SetPrecision(const std::string& module,
                                        const Precisions& precisions);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_H_
