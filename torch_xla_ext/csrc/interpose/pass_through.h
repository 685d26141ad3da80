// A node that passes its operand through. The HLO stays the same.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_PASS_THROUGH_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_PASS_THROUGH_H_

#include <torch/csrc/lazy/core/hash.h>

#include <memory>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"

namespace torch_xla {

class PassThrough : public XlaNode {
 public:
  // `attributes` become part of the hash.
  explicit PassThrough(const torch::lazy::Value& operand,
                       torch::lazy::hash_t attributes = {})
      : XlaNode(Kind(), {operand}, GetXlaShape(operand), /*num_outputs=*/1,
                attributes),
        attributes_(attributes) {}

  torch::lazy::NodePtr Clone(torch::lazy::OpList operands) const override {
    return std::make_shared<PassThrough>(operands[0], attributes_);
  }

  XlaOpVector Lower(LoweringContext* loctx) const override {
    const xla::XlaOp op = loctx->GetOutputOp(operand(0));
    return ReturnOps(absl::Span<const xla::XlaOp>(&op, 1), loctx);
  }

 private:
  static torch::lazy::OpKind Kind() {
    static const auto kind = torch::lazy::OpKind::Get("xla::pass_through");
    return kind;
  }

  torch::lazy::hash_t attributes_;
};

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_PASS_THROUGH_H_
