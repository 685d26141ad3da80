// Calls that run on each device's shards of their operands. XLA's partitioner
// knows nothing about a kernel, and would gather the whole operands.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_SHARDS_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_SHARDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// Each device's shard of an operand or a result.
struct Shard {
  // How the whole is partitioned: a serialized xla::OpSharding.
  std::string sharding;
  std::vector<int64_t> shape;
  // For a result: whether its tensor is marked with this sharding. torch_xla
  // itself marks the tensor of an operand that is written in place, with the
  // operand's sharding.
  bool marked = true;

  torch::lazy::hash_t Hash() const;
  std::string ToString() const;
};

// A device's shard of an operand. XLA does not partition the operations between
// this and FromShard.
xla::XlaOp ToShard(xla::XlaOp whole, const Shard& shard,
                   xla::PrimitiveType type);

// Marks an operation on shards. `num_results` is the size of the result tuple;
// without it, the result is not a tuple.
void RunsOnShards(xla::XlaOp op, std::optional<size_t> num_results);

// The whole result, of which `part` is a device's shard. The sharding is set on
// this node and not on the call's: torch_xla uses a node's shape as the
// tensor's, and a call's shape is a tuple.
torch::lazy::NodePtr MakeFromShardNode(const torch::lazy::Value& part,
                                       const xla::Shape& whole,
                                       const Shard& shard);

// A tensor's sharding, serialized; none if it is not sharded.
std::optional<std::string> ShardingOf(const torch_xla::XLATensor& tensor);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_SHARDS_H_
