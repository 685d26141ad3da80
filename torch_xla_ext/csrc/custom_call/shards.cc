#include "torch_xla_ext/csrc/custom_call/shards.h"

#include <torch/csrc/lazy/core/hash.h>

#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "torch_xla_ext/csrc/registry/text.h"

namespace torch_xla_ext {
namespace {

// Serialized: OpSharding{type: MANUAL}; OpSharding{type: TUPLE}; and MANUAL as
// an element of TUPLE's field tuple_shardings (xla/xla_data.proto).
constexpr char kManual[] = "\x08\x04";
constexpr char kTuple[] = "\x08\x02";
constexpr char kManualElement[] = "\x2a\x02\x08\x04";

xla::OpSharding Parse(const std::string& bytes) {
  xla::OpSharding sharding;
  if (!sharding.ParseFromString(bytes)) {
    throw std::invalid_argument("not an OpSharding: " + Quoted(bytes));
  }
  return sharding;
}

void SetSharding(xla::XlaOp op, const std::string& bytes) {
  const std::optional<xla::OpSharding> sharding(Parse(bytes));
  if (!op.builder()->SetInstructionSharding(op, sharding).ok()) {
    throw std::runtime_error("the sharding of a custom call could not be set");
  }
}

// A custom call that controls XLA's partitioner.
xla::XlaOp TellPartitioner(const char* target, xla::XlaOp op,
                           const xla::Shape& shape,
                           const std::string& sharding) {
  const std::vector<xla::XlaOp> operands = {op};
  const xla::XlaOp result = xla::CustomCall(
      op.builder(), target, operands, shape, /*opaque=*/"",
      /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
      /*literal=*/nullptr, xla::SCHEDULE_NONE, xla::API_VERSION_ORIGINAL);
  SetSharding(result, sharding);
  return result;
}

class FromShardNode : public torch_xla::XlaNode {
 public:
  FromShardNode(const torch::lazy::Value& part, const xla::Shape& whole,
                Shard shard)
      : XlaNode(torch::lazy::OpKind::Get("xla::from_shard"), {part}, whole,
                /*num_outputs=*/1, shard.Hash()),
        shard_(std::move(shard)) {}

  torch::lazy::NodePtr Clone(torch::lazy::OpList operands) const override {
    return MakeFromShardNode(operands[0], xla_shape(), shard_);
  }

  torch_xla::XlaOpVector Lower(
      torch_xla::LoweringContext* loctx) const override {
    const std::vector<xla::XlaOp> whole = {TellPartitioner(
        "SPMDShardToFullShape", loctx->GetOutputOp(operands()[0]), xla_shape(),
        shard_.sharding)};
    return ReturnOps(whole, loctx);
  }

  std::string ToString() const override {
    return XlaNode::ToString() + ", " + shard_.ToString();
  }

 private:
  const Shard shard_;
};

}  // namespace

torch::lazy::hash_t Shard::Hash() const {
  return torch::lazy::MHash(sharding, shape, marked);
}

std::string Shard::ToString() const {
  std::ostringstream out;
  out << "part [";
  for (size_t i = 0; i < shape.size(); ++i) out << (i ? ", " : "") << shape[i];
  out << "] of sharding " << Quoted(sharding);
  return out.str();
}

xla::XlaOp ToShard(xla::XlaOp whole, const Shard& shard,
                   xla::PrimitiveType type) {
  const xla::Shape shape = torch_xla::ShapeHelper::ShapeOfXlaOp(whole);
  const xla::XlaOp divided =
      TellPartitioner("Sharding", whole, shape, shard.sharding);
  return TellPartitioner("SPMDFullToShardShape", divided,
                         xla::ShapeUtil::MakeShape(type, shard.shape), kManual);
}

void RunsOnShards(xla::XlaOp op, std::optional<size_t> num_results) {
  if (!num_results) return SetSharding(op, kManual);
  std::string sharding = kTuple;
  for (size_t i = 0; i < *num_results; ++i) sharding += kManualElement;
  SetSharding(op, sharding);
}

torch::lazy::NodePtr MakeFromShardNode(const torch::lazy::Value& part,
                                       const xla::Shape& whole,
                                       const Shard& shard) {
  auto node = std::make_shared<FromShardNode>(part, whole, shard);
  if (shard.marked) node->SetSharding(Parse(shard.sharding), 0);
  torch_xla::DetectDynamicShape(node);
  return node;
}

std::optional<std::string> ShardingOf(const torch_xla::XLATensor& tensor) {
  const auto spec = tensor.sharding_spec();
  if (spec == nullptr) return std::nullopt;
  return spec->sharding.SerializeAsString();
}

}  // namespace torch_xla_ext
