// Reductions as PyTorch does them.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REDUCTIONS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REDUCTIONS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, with
// reductions as PyTorch does them; nothing if they are so already.
//
// Sums and products of 16-bit floats are rounded once.
// torch_xla lowers a sum of bfloat16 to a reduction that adds bfloat16, and XLA
// rounds each partial sum: a sum of 300 ones is 256. PyTorch accumulates in
// float32. So a reduce, reduce-window, scatter or select-and-scatter whose
// computation adds or multiplies float16 or bfloat16 gets its operands
// converted, a copy of its computation in float32, and its result converted
// back. XLA fuses the conversions with it.
//
// Collectives are left alone: an all-reduce of bfloat16 adds bfloat16, as
// NCCL's does.
//
// Maxima of floats begin with -inf, and minima with inf. torch_xla begins with
// the lowest finite number, which it then returns for numbers that are all
// -inf.
//
// The index of an extremum is that of the first NaN, if there is one. XLA's
// ArgMax and ArgMin compare values only, and ignore NaN.
//
// In a program with shardings, scatters, convolutions and gradients of pools
// get operands that XLA's partitioner can divide (partitioned_operands.h). In
// all programs, numbers are converted as PyTorch does it (conversions.h).
std::optional<std::string> CorrectReductions(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REDUCTIONS_H_
