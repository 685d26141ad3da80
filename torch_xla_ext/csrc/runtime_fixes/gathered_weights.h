// Gathers sharded weights for the matmuls that use them, as in FSDP.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHERED_WEIGHTS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHERED_WEIGHTS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, in which
// matmuls and convolutions use gathered weights if the weights are divided
// among the same devices as the batch; nothing if there are no such weights.
//
// Such a program is fully sharded data parallel (FSDP): a product's result can
// be divided by examples or by features, not by both. XLA propagates the
// sharding that it meets first, which is a weight's if the batch's comes from
// further away: then it gathers the activations of all devices, and exchanges
// the products' results. Here each product's weight is gathered along these
// dimensions, so that only the batch's sharding propagates. Dimensions that
// other axes of the mesh divide, as in tensor parallel programs, stay divided.
//
// A later product, such as the backward pass's, gathers its weight again unless
// little has been gathered since the earlier one. XLA would otherwise keep all
// weights from the forward to the backward pass, since equal gathers are one.
//
// A weight is a floating-point parameter that is an operand of a matrix product
// or a convolution, directly or after transpositions and conversions. The
// batch's sharding is that of a parameter with a divided first dimension:
// integers, such as tokens or labels, or floats with three dimensions or more
// that are a left operand. Programs with regions of manual sharding are not
// changed.
std::optional<std::string> GatherWeights(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GATHERED_WEIGHTS_H_
