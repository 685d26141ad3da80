// Keeps XLA's partitioner from losing margins: what pads, slices and shifts of
// a divided tensor add, omit or move.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_MARGINS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_MARGINS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, in which
// pads, slices and reductions of several operands are changed, if it has
// shardings. Returns nothing if nothing changes. Programs with regions of
// manual sharding are not changed, because the regions cannot be recognized
// here.
//
// Pads that shift a whole operand, so that its size stays the same, and slices
// of pads, of which the partitioner makes such pads: it leaves out the shift of
// a dimension along which the result is divided. The pad becomes larger, and a
// barrier separates it from the slice.
//
// Sizes that the devices do not divide: from a tensor that is divided along two
// dimensions, the partitioner makes one that is divided along one of them,
// among all devices, but takes this dimension for a smaller one. With 4
// devices, it takes 19 rows in 2 parts of 10 for 10 rows in 4 parts of 5. A
// slice or a pad of them, and a reduction of several operands such as argmax,
// is then wrong, or does not compile. Operands and results become whole in such
// dimensions.
std::optional<std::string> CorrectPartitionedMargins(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_MARGINS_H_
