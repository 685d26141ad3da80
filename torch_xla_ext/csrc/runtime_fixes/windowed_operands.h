// Convolutions, and gradients of maximum pools, that XLA's partitioner computes
// right.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_WINDOWED_OPERANDS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_WINDOWED_OPERANDS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, with operands
// of convolutions and of select-and-scatters whole in their spatial dimensions,
// where the partitioner divides these wrongly; nothing if none changes. The
// sharding of other dimensions is left to it.
//
// Convolutions, if the mesh has several axes: where both operands are divided
// along a spatial dimension, as they are for the gradient of the weights, the
// partitioner adds the devices' results over all devices, and so adds equal
// ones of those along another axis of the mesh. So it does for the gradient of
// the weights of a convolution in groups, of a divided batch: its operands are
// whole.
//
// Select-and-scatters, the gradients of maximum pools, if windows overlap: the
// partitioner leaves out what one device's windows add to another's values.
//
// Programs with regions of manual sharding stay as they are: what is in such a
// region cannot be told here.
std::optional<std::string> GatherWindowedOperands(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_WINDOWED_OPERANDS_H_
