// HLO's reduce-precision, which no operator of PyTorch is lowered to.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_REDUCE_PRECISION_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_REDUCE_PRECISION_H_

#include <ATen/ATen.h>
#include <torch/csrc/lazy/core/hash.h>

#include <memory>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::operators {

class ReducePrecisionNode : public torch_xla::XlaNode {
 public:
  ReducePrecisionNode(const torch::lazy::Value& operand, int exponent_bits,
                      int mantissa_bits)
      : XlaNode(Kind(), {operand}, torch_xla::GetXlaShape(operand),
                /*num_outputs=*/1,
                torch::lazy::MHash(exponent_bits, mantissa_bits)),
        exponent_bits_(exponent_bits),
        mantissa_bits_(mantissa_bits) {}

  torch::lazy::NodePtr Clone(torch::lazy::OpList operands) const override {
    return std::make_shared<ReducePrecisionNode>(operands[0], exponent_bits_,
                                                 mantissa_bits_);
  }

  torch_xla::XlaOpVector Lower(
      torch_xla::LoweringContext* loctx) const override {
    const xla::XlaOp op = xla::ReducePrecision(loctx->GetOutputOp(operand(0)),
                                               exponent_bits_, mantissa_bits_);
    return ReturnOps(absl::Span<const xla::XlaOp>(&op, 1), loctx);
  }

 private:
  static torch::lazy::OpKind Kind() {
    static const auto kind = torch::lazy::OpKind::Get("xla::reduce_precision");
    return kind;
  }

  int exponent_bits_;
  int mantissa_bits_;
};

// The numbers of an XLA tensor, rounded to the nearest ones of a type with so
// many bits, or to the one with an even mantissa. They keep their dtype.
inline at::Tensor ReducePrecision(const at::Tensor& self, int exponent_bits,
                                  int mantissa_bits) {
  const torch_xla::XLATensorPtr tensor = torch_xla::bridge::GetXlaTensor(self);
  const torch_xla::XLATensorPtr result = tensor->CreateFrom(
      torch::lazy::Value(std::make_shared<ReducePrecisionNode>(
          tensor->GetIrValue(), exponent_bits, mantissa_bits)),
      self.scalar_type(), /*delay_eager_execution=*/false);
  return torch_xla::bridge::AtenFromXlaTensor(result);
}

}  // namespace torch_xla_ext::operators

#endif  // TORCH_XLA_EXT_CSRC_OPERATORS_REDUCE_PRECISION_H_
