#include "torch_xla_ext/csrc/custom_call/custom_call.h"

#include <torch/csrc/lazy/core/hash.h>

#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "torch_xla_ext/csrc/custom_call/partitioned_call.h"
#include "torch_xla_ext/csrc/registry/text.h"

namespace torch_xla_ext {
namespace {

// Appends the operands that results alias a second time, from the last result
// to the first. The HLO does not have these extra operands. But the program's
// parameters are numbered in post-order, which begins at a node's last operand,
// so the aliased operands come first, in the order of the results. XLA pairs
// donated parameters with results of the same size in order, and copies both if
// the aliases have a different order.
std::vector<torch::lazy::Value> WithAliasedLast(
    torch::lazy::OpList inputs, const std::map<int64_t, int64_t>& aliases) {
  std::vector<torch::lazy::Value> operands(inputs.begin(), inputs.end());
  for (auto alias = aliases.rbegin(); alias != aliases.rend(); ++alias) {
    operands.push_back(inputs[alias->second]);
  }
  return operands;
}

// `shape` in row-major order.
xla::Shape RowMajor(xla::Shape shape) {
  xla::LayoutUtil::SetToDefaultLayout(&shape);
  return shape;
}

// `shape` with its dimensions in the order `layout` in memory.
xla::Shape WithLayout(const xla::Shape& shape,
                      const std::vector<int64_t>& layout) {
  std::vector<int64_t> inverse(layout.size());
  for (size_t i = 0; i < layout.size(); ++i) {
    inverse[layout[i]] = static_cast<int64_t>(i);
  }
  return xla::ShapeUtil::PermuteDimensions(
      inverse, RowMajor(xla::ShapeUtil::PermuteDimensions(layout, shape)));
}

// `results`, a tuple.
xla::Shape WithLayouts(const xla::Shape& results,
                       const std::map<int64_t, std::vector<int64_t>>& layouts) {
  std::vector<xla::Shape> shapes;
  const int64_t count = xla::ShapeUtil::TupleElementCount(results);
  for (int64_t i = 0; i < count; ++i) {
    const xla::Shape& shape = xla::ShapeUtil::GetTupleElementShape(results, i);
    const auto layout = layouts.find(i);
    shapes.push_back(layout == layouts.end()
                         ? RowMajor(shape)
                         : WithLayout(shape, layout->second));
  }
  return xla::ShapeUtil::MakeTupleShape(shapes);
}

// An untyped kernel is given its shapes, if at all, when the call is traced.
void CheckStatic(const std::string& target, size_t index,
                 const xla::Shape& shape) {
  if (shape.is_static()) return;
  throw std::invalid_argument(
      "custom call " + Quoted(target.substr(0, target.find('#'))) +
      ": operand " + std::to_string(index) + " has the dynamic shape " +
      shape.ToString() +
      ": a kernel needs sizes that do not change while the program runs");
}

// The call in a program for several devices (partitioned_call.h).
xla::XlaOp BuildPartitionedCall(const std::vector<xla::XlaOp>& inputs,
                                const xla::Shape& result_shape,
                                const CustomCallConfig& config) {
  return xla::CustomCall(inputs[0].builder(), kPartitionedTarget, inputs,
                         result_shape, KeepPartitionedCall(config),
                         config.has_side_effect,
                         /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
                         xla::SCHEDULE_NONE, xla::API_VERSION_STATUS_RETURNING);
}

}  // namespace

xla::Shape OperandShape(const CustomCallConfig& config, size_t index,
                        const xla::Shape& shape) {
  const auto layout = config.operand_layouts.find(static_cast<int64_t>(index));
  return layout == config.operand_layouts.end()
             ? RowMajor(shape)
             : WithLayout(shape, layout->second);
}

xla::Shape ResultShape(const CustomCallConfig& config,
                       const xla::Shape& results) {
  const bool is_tuple = xla::ShapeUtil::TupleElementCount(results) != 1 ||
                        config.single_result_is_tuple;
  if (is_tuple) {
    return config.row_major ? WithLayouts(results, config.result_layouts)
                            : results;
  }
  const xla::Shape& result = xla::ShapeUtil::GetTupleElementShape(results, 0);
  return config.row_major ? RowMajor(result) : result;
}

std::vector<OperandAlias> OperandAliases(const CustomCallConfig& config,
                                         bool is_tuple) {
  std::vector<OperandAlias> aliasing;
  for (const auto& [result, operand] : config.aliases) {
    aliasing.push_back({is_tuple ? xla::ShapeIndex{result} : xla::ShapeIndex{},
                        {operand, xla::ShapeIndex{}}});
  }
  return aliasing;
}

torch::lazy::hash_t CustomCallConfig::Hash() const {
  using torch::lazy::Hash;
  using torch::lazy::HashCombine;
  using torch::lazy::MHash;
  torch::lazy::hash_t hash = HashCombine(Hash(target), Hash(payload));
  hash = HashCombine(hash,
                     MHash(api_version, has_side_effect, row_major,
                           single_result_is_tuple, frontend_attributes.size()));
  for (const auto& [key, value] : frontend_attributes) {
    hash = HashCombine(hash, HashCombine(Hash(key), Hash(value)));
  }
  hash = HashCombine(hash, MHash(operand_types.size()));
  for (const xla::PrimitiveType type : operand_types) {
    hash = HashCombine(hash, MHash(static_cast<int64_t>(type)));
  }
  hash = HashCombine(hash, Hash(partition));
  hash = HashCombine(hash, MHash(aliases.size()));
  for (const auto& [result, operand] : aliases) {
    hash = HashCombine(hash, MHash(result, operand));
  }
  hash = HashCombine(hash, MHash(num_hidden_results, result_layouts.size(),
                                 operand_layouts.size()));
  for (const auto* layouts : {&operand_layouts, &result_layouts}) {
    for (const auto& [index, layout] : *layouts) {
      hash = HashCombine(hash, MHash(index, layout));
    }
  }
  return hash;
}

std::string CustomCallConfig::ToString() const {
  std::ostringstream out;
  out << "target=" << Quoted(target) << ", payload=" << Quoted(payload)
      << ", api_version=" << api_version
      << ", has_side_effect=" << has_side_effect << ", row_major=" << row_major
      << ", single_result_is_tuple=" << single_result_is_tuple;
  for (const xla::PrimitiveType type : operand_types) {
    out << ", operand_type=" << type;
  }
  for (const auto& [key, value] : frontend_attributes) {
    out << ", " << key << "=" << Quoted(value);
  }
  if (!partition.empty()) out << ", partition=" << partition;
  for (const auto& [result, operand] : aliases) {
    out << ", result " << result << "=operand " << operand;
  }
  for (const auto& [operand, layout] : operand_layouts) {
    out << ", layout of operand " << operand << "=";
    for (const int64_t dimension : layout) out << dimension;
  }
  for (const auto& [result, layout] : result_layouts) {
    out << ", layout of result " << result << "=";
    for (const int64_t dimension : layout) out << dimension;
  }
  if (num_hidden_results > 0) out << ", hidden=" << num_hidden_results;
  return out.str();
}

std::vector<xla::XlaOp> BuildCustomCall(std::vector<xla::XlaOp> inputs,
                                        const xla::Shape& output_shape,
                                        const CustomCallConfig& config) {
  if (inputs.empty()) {
    throw std::invalid_argument("custom call " + Quoted(config.target) +
                                ": inputs are empty");
  }
  for (size_t i = 0; i < config.operand_types.size(); ++i) {
    inputs[i] = torch_xla::MaybeConvertTo(inputs[i], config.operand_types[i]);
  }
  xla::XlaBuilder* builder = inputs[0].builder();
  const int64_t num_outputs = xla::ShapeUtil::TupleElementCount(output_shape);
  const bool is_partitioned = !config.partition.empty() && !LowersWholeCalls();
  const bool tuple =
      num_outputs != 1 || (config.single_result_is_tuple && !is_partitioned);
  const auto api_version =
      static_cast<xla::CustomCallApiVersion>(config.api_version);
  const std::vector<OperandAlias> aliasing = OperandAliases(config, tuple);

  auto call = [&] {
    std::vector<xla::Shape> operand_shapes;
    if (config.row_major) {
      operand_shapes.reserve(inputs.size());
      for (const xla::XlaOp& input : inputs) {
        const xla::Shape& shape = torch_xla::ShapeHelper::ShapeOfXlaOp(input);
        CheckStatic(config.target, operand_shapes.size(), shape);
        operand_shapes.push_back(
            OperandShape(config, operand_shapes.size(), shape));
      }
    }
    if (is_partitioned) {
      return BuildPartitionedCall(
          inputs,
          tuple ? output_shape
                : xla::ShapeUtil::GetTupleElementShape(output_shape, 0),
          config);
    }
    const xla::Shape result_shape = ResultShape(config, output_shape);
    if (!config.row_major) {
      return xla::CustomCall(builder, config.target, inputs, result_shape,
                             config.payload, config.has_side_effect, aliasing,
                             /*literal=*/nullptr, xla::SCHEDULE_NONE,
                             api_version);
    }
    return xla::CustomCallWithLayout(
        builder, config.target, inputs, result_shape, operand_shapes,
        config.payload, config.has_side_effect, aliasing,
        /*literal=*/nullptr, xla::SCHEDULE_NONE, api_version);
  };
  std::vector<xla::XlaOp> made = {call()};
  std::vector<xla::XlaOp> results;
  if (tuple) {
    for (int64_t i = 0; i < num_outputs; ++i) {
      results.push_back(xla::GetTupleElement(made[0], i));
    }
    made.insert(made.end(), results.begin(), results.end());
  } else {
    results = made;
  }
  // Upstream sets the attributes on every op that is built here.
  for (const xla::XlaOp& op : made) {
    for (const auto& [key, value] : config.frontend_attributes) {
      if (!builder->SetInstructionFrontendAttribute(op, key, value).ok()) {
        throw std::runtime_error("custom call " + Quoted(config.target) +
                                 ": frontend attribute " + Quoted(key) +
                                 " could not be set");
      }
    }
  }
  return results;
}

CustomCallNode::CustomCallNode(torch::lazy::OpKind kind,
                               torch::lazy::OpList inputs,
                               const xla::Shape& output_shape,
                               CustomCallConfig config,
                               torch::lazy::hash_t hash_seed)
    : XlaNode(kind, inputs, output_shape,
              xla::ShapeUtil::TupleElementCount(output_shape), hash_seed),
      config_(std::move(config)),
      hash_seed_(hash_seed) {}

torch::lazy::NodePtr CustomCallNode::Clone(torch::lazy::OpList operands) const {
  torch::lazy::NodePtr node = std::make_shared<CustomCallNode>(
      op(), operands, xla_shape(), config_, hash_seed_);
  torch_xla::DetectDynamicShape(node);
  return node;
}

torch_xla::XlaOpVector CustomCallNode::Lower(
    torch_xla::LoweringContext* loctx) const {
  const size_t num_inputs = operands().size() - config_.aliases.size();
  std::vector<xla::XlaOp> inputs;
  inputs.reserve(num_inputs);
  for (size_t i = 0; i < num_inputs; ++i) {
    inputs.push_back(loctx->GetOutputOp(operands()[i]));
  }
  return ReturnOps(BuildCustomCall(inputs, xla_shape(), config_), loctx);
}

std::string CustomCallNode::ToString() const {
  return XlaNode::ToString() + ", " + config_.ToString();
}

torch::lazy::NodePtr MakeCustomCallNode(
    torch::lazy::OpKind kind, torch::lazy::OpList inputs,
    const torch::lazy::BackendDevice& device, const OutputTypes& outputs,
    CustomCallConfig config) {
  torch::lazy::hash_t hash = config.Hash();
  std::vector<xla::Shape> shapes;
  shapes.reserve(outputs.shapes.size());
  for (size_t i = 0; i < outputs.shapes.size(); ++i) {
    const xla::PrimitiveType type =
        torch_xla::MakeXlaPrimitiveType(outputs.dtypes[i], &device);
    shapes.push_back(xla::ShapeUtil::MakeShape(type, outputs.shapes[i]));
    hash = torch::lazy::HashCombine(
        hash, torch::lazy::MHash(static_cast<int64_t>(type),
                                 torch::lazy::Hash(outputs.shapes[i])));
  }
  const std::vector<torch::lazy::Value> operands =
      WithAliasedLast(inputs, config.aliases);
  torch::lazy::NodePtr node = std::make_shared<CustomCallNode>(
      kind, operands, xla::ShapeUtil::MakeTupleShape(shapes), std::move(config),
      hash);
  torch_xla::DetectDynamicShape(node);
  return node;
}

std::vector<torch_xla::XLATensorPtr> TraceCustomCall(
    torch::lazy::OpKind kind,
    const std::vector<torch_xla::XLATensorPtr>& inputs,
    const OutputTypes& outputs, CustomCallConfig config) {
  std::vector<torch::lazy::Value> values;
  values.reserve(inputs.size());
  for (const torch_xla::XLATensorPtr& input : inputs) {
    values.push_back(input->GetIrValue());
  }
  const torch::lazy::BackendDevice& device = inputs[0]->GetDevice();
  const size_t num_results = outputs.dtypes.size() - config.num_hidden_results;
  const torch::lazy::NodePtr node =
      MakeCustomCallNode(kind, values, device, outputs, std::move(config));

  std::vector<torch_xla::XLATensorPtr> results;
  results.reserve(num_results);
  for (size_t i = 0; i < num_results; ++i) {
    results.push_back(inputs[0]->CreateFrom(torch::lazy::Value(node, i),
                                            outputs.dtypes[i],
                                            /*delay_eager_execution=*/true));
  }
  auto* executor = torch_xla::XLAGraphExecutor::Get();
  if (executor->UseEagerMode()) executor->ApplyEagerSync(results);
  return results;
}

}  // namespace torch_xla_ext
