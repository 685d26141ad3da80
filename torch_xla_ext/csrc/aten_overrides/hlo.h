// Operations of HLO that no operator of PyTorch is lowered to.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_HLO_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_HLO_H_

#include <ATen/ATen.h>
#include <torch/csrc/lazy/core/hash.h>

#include <memory>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::aten_overrides {

// The node of one of the operations below, whose result has the shape and type
// of its operands.
template <typename Operation>
class HloNode : public torch_xla::XlaNode {
 public:
  HloNode(torch::lazy::OpList operands, const Operation& operation)
      : XlaNode(Kind(), operands, torch_xla::GetXlaShape(operands[0]),
                /*num_outputs=*/1, operation.Hash()),
        operation_(operation) {}

  torch::lazy::NodePtr Clone(torch::lazy::OpList operands) const override {
    return std::make_shared<HloNode>(operands, operation_);
  }

  torch_xla::XlaOpVector Lower(
      torch_xla::LoweringContext* loctx) const override {
    std::vector<xla::XlaOp> inputs;
    for (const torch::lazy::Output& output : operands()) {
      inputs.push_back(loctx->GetOutputOp(output));
    }
    const xla::XlaOp op = operation_.Build(inputs);
    return ReturnOps(absl::Span<const xla::XlaOp>(&op, 1), loctx);
  }

 private:
  static torch::lazy::OpKind Kind() {
    static const auto kind = torch::lazy::OpKind::Get(Operation::kName);
    return kind;
  }

  Operation operation_;
};

// The result for XLA tensors that are alike.
template <typename Operation>
at::Tensor Traced(const Operation& operation,
                  std::initializer_list<at::Tensor> operands) {
  std::vector<torch::lazy::Value> values;
  for (const at::Tensor& operand : operands) {
    values.push_back(torch_xla::bridge::GetXlaTensor(operand)->GetIrValue());
  }
  const at::Tensor& first = *operands.begin();
  return torch_xla::bridge::AtenFromXlaTensor(
      torch_xla::bridge::GetXlaTensor(first)->CreateFrom(
          torch::lazy::Value(
              std::make_shared<HloNode<Operation>>(values, operation)),
          first.scalar_type(), /*delay_eager_execution=*/false));
}

// Values rounded to nearest even in a type with so many bits. They keep their
// type.
struct ReducedPrecision {
  static constexpr const char* kName = "xla::reduce_precision";

  torch::lazy::hash_t Hash() const {
    return torch::lazy::MHash(exponent_bits, mantissa_bits);
  }
  xla::XlaOp Build(const std::vector<xla::XlaOp>& inputs) const {
    return xla::ReducePrecision(inputs[0], exponent_bits, mantissa_bits);
  }

  int exponent_bits;
  int mantissa_bits;
};

// Quotients of integers, rounded towards zero; -1 where the divisor is zero.
struct Quotient {
  static constexpr const char* kName = "xla::quotient";

  torch::lazy::hash_t Hash() const { return {}; }
  xla::XlaOp Build(const std::vector<xla::XlaOp>& inputs) const {
    return xla::Div(inputs[0], inputs[1], /*broadcast_dimensions=*/{});
  }
};

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_HLO_H_
