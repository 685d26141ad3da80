// Gives XLA's reductions the results of PyTorch's.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REDUCTIONS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REDUCTIONS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, with
// corrected reductions; nothing if there are none to correct.
//
// Sums and products of 16-bit floats are rounded once. torch_xla lowers a sum
// of bfloat16 to a reduction that adds bfloat16, and XLA rounds each partial
// sum: a sum of 300 ones is 256. PyTorch accumulates in float32. So in a
// reduce, reduce-window, scatter or select-and-scatter that adds or multiplies
// float16 or bfloat16, the operands are converted to float32, the computation
// is replaced by a float32 copy, and the result is converted back. XLA fuses
// the conversions with it.
//
// XLA:CPU also adds up the products of a float16 convolution in float16, with
// ten times the error of PyTorch's sums. With `on_cpu`, they are float32.
//
// XLA simplifies a / b / c to a / (b * c), and in float16 b * c is soon
// infinite. So float16 is divided in float32, as in PyTorch.
//
// Collectives are left alone: an all-reduce of bfloat16 adds bfloat16, as
// NCCL's does.
//
// Maxima of floats begin with -inf, and minima with inf. torch_xla begins with
// the lowest finite number, which is then the result if all elements are -inf.
//
// The index of an extremum is that of the first NaN, if there is one. XLA's
// ArgMax and ArgMin ignore NaN.
std::optional<std::string> CorrectReductions(const std::string& module,
                                             bool on_cpu);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REDUCTIONS_H_
