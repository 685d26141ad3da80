// Calls that run on what each device has of their operands: XLA's partitioner
// knows nothing of a kernel, and would gather the whole.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_SHARDS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_SHARDS_H_

#include <torch/csrc/lazy/backend/backend_data.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// What each device has of an operand or a result.
struct Shard {
  // How the whole is divided: an xla::OpSharding, serialized.
  std::string sharding;
  std::vector<int64_t> shape;
  // Of a result, whether its tensor is marked with this sharding. That of an
  // operand that is written in place is marked by torch_xla, as the operand is.
  bool marked = true;

  torch::lazy::hash_t Hash() const;
  std::string ToString() const;
};

// A device's part of an operand. XLA takes the operations between this and
// FromShard as they are.
xla::XlaOp ToShard(xla::XlaOp whole, const Shard& shard,
                   xla::PrimitiveType type);

// Marks an operation on parts. `num_results` are those of a tuple; without a
// number, the result is no tuple.
void RunsOnShards(xla::XlaOp op, std::optional<size_t> num_results);

// The whole of which a result, the input's, is a device's part. Its sharding is
// set on the node, not on the call's: torch_xla takes a node's shape for that
// of the tensor, and a call's is a tuple.
torch::lazy::NodePtr MakeFromShardNode(const torch::lazy::Value& part,
                                       const xla::Shape& whole,
                                       const Shard& shard);

// The sharding that a tensor has, serialized; none if it has none.
std::optional<std::string> ShardingOf(const torch_xla::XLATensor& tensor);

// What is on the device of a value, or of that which shardings alone were put
// around to make it; null if there is no such thing. Copying into a tensor that
// has a sharding makes such values.
torch::lazy::BackendDataPtr DataUnderShardings(torch::lazy::Value value);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_SHARDS_H_
