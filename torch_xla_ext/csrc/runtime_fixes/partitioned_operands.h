// Operands that XLA's partitioner can divide.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_OPERANDS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_OPERANDS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, with other
// operands of scatters, convolutions, matrix products and select-and-scatters,
// if it has shardings; nothing if none changes.
//
// Scatters get indices of 32 bits in place of 64. Where the indices are divided
// unequally, which a slice of a tensor that is sharded can be, the partitioner
// pads them with a number of 32 bits, and aborts the process unless they are of
// 32 bits, too. Indices are clamped before: one that is out of range stays so,
// and its update is dropped.
//
// The operands of the others become whole in their spatial dimensions where the
// partitioner divides these wrongly. The sharding of other dimensions is left
// to it. Programs with regions of manual sharding stay as they are: what is in
// such a region cannot be told here.
//
// Convolutions, if the mesh has several axes: where both operands are divided
// along a spatial dimension, as they are for the gradient of the weights, the
// partitioner adds the devices' results over all devices, and so adds equal
// ones of those along another axis of the mesh. So it does for the gradient of
// the weights of a convolution in groups, of a divided batch: its operands are
// whole.
//
// Matrix products, if the mesh has several axes, along one of which the numbers
// of devices fall: where the summed dimension is divided and the result is
// divided along both axes, the partitioner takes the wrong slices of the sums.
// The operands are whole in the summed dimensions.
//
// Select-and-scatters, the gradients of maximum pools, if windows overlap: the
// partitioner leaves out what one device's windows add to another's values.
std::optional<std::string> CorrectPartitionedOperands(
    const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_OPERANDS_H_
