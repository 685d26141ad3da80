// Replaces operands that XLA's partitioner would divide wrongly.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_OPERANDS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_OPERANDS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, in which
// operands of gathers, scatters, convolutions, matrix products,
// select-and-scatters and reductions are replaced, if it has shardings. Returns
// nothing if no operand needs to change.
//
// Scatters get more updates, up to a multiple of the number of devices, whose
// indices are out of range, so that they are dropped. If the updates are
// divided unequally, as a slice of a sharded tensor can be, the partitioner
// applies its own padding, or aborts the process if indices have 64 bits.
//
// Scatters by indices into several dimensions, if the mesh has several axes, as
// of scatter_add and the gradient of gather: if operand, indices, updates and
// result are divided along different axes, the partitioner adds updates in the
// wrong places. Operands and result keep the division of one of the indexed
// dimensions, and of the dimensions of a window.
//
// The operands of the other operations become whole in the dimensions that the
// partitioner divides wrongly; it still shards the others. Programs with
// regions of manual sharding are not changed, because the regions cannot be
// recognized here.
//
// Sums, if device numbers decrease along an axis of the mesh: if the summed
// dimension is divided, and the result along two axes, which a reshape can make
// of one, the partitioner takes the wrong slices of the sums. The operands of
// matrix products and convolutions become whole in the summed dimensions, and
// the indices and updates of scatters, too.
//
// Reductions by another computation than a sum, product, maximum or minimum, or
// by a product of complex numbers: for the all-reduce that the partitioner
// makes, XLA:GPU ends the process, and XLA:CPU raises an error. NCCL has no
// product of complex numbers. The operands become whole in these dimensions.
//
// Convolutions, if the mesh has several axes: where both operands are divided
// along a spatial dimension, as they are for the gradient of the weights, the
// partitioner adds the results of all devices, including equal ones along
// another axis of the mesh. It does the same for the gradient of the weights of
// a grouped convolution with a divided batch, whose operands become whole. On
// any mesh, it aborts the process where margins of an input with gaps are
// omitted, as in the gradient of a convolution with strides. Grouped
// convolutions whose windows have one pixel, or all, become whole on any mesh,
// except for the batch: the partitioner mixes up their groups.
//
// Gathers by indices into several dimensions, on more than four devices whose
// mesh has several axes: if operand and indices are divided along different
// axes, the partitioner takes some elements from another device's part. The
// operand becomes whole in the indexed dimensions, except that the first one
// stays divided if all are indexed, as in torch.gather.
//
// Select-and-scatters (gradients of max pooling), if windows overlap: the
// partitioner omits the contributions of one device's windows to another's
// values. The result becomes whole, too.
std::optional<std::string> CorrectPartitionedOperands(
    const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PARTITIONED_OPERANDS_H_
