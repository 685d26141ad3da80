// The IR node of a custom call, and how it becomes HLO.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_CUSTOM_CALL_H_
#define TORCH_XLA_EXT_CSRC_CALLS_CUSTOM_CALL_H_

#include <map>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/calls/shards.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// What an HLO custom call says beside its operands and its result's shape.
//
// Two calls that differ in any member run different programs. Hash() and
// ToString() therefore cover every member; a member that is added here is added
// to both.
struct CustomCallConfig {
  std::string target;
  // What the kernel is handed beside its operands: the payload of an untyped
  // call, the attributes of a typed one. XLA's name of it is backend_config.
  std::string payload;
  int api_version = 0;
  bool has_side_effect = false;
  // The layouts of operands and results are row-major, instead of whatever the
  // producer and the compiler choose. An untyped kernel sees only pointers: it
  // has to know the layout.
  bool row_major = false;
  // A single result is a tuple of one, as several results are a tuple of many.
  bool single_result_is_tuple = false;
  // What the operands' torch dtypes are to XLA; empty to take them as they
  // come. The values that some of torch_xla's operations give are of another
  // type than their tensor's dtype: the indices of torch.cummax are int64 and
  // s32.
  std::vector<xla::PrimitiveType> operand_types;
  std::map<std::string, std::string> frontend_attributes;
  // What the kernel gets of each operand, if it runs on parts; else empty.
  std::vector<Shard> shards;
  // Results that are an operand's buffer, written in place: result to operand.
  std::map<int64_t, int64_t> aliases;

  torch::lazy::hash_t Hash() const;
  std::string ToString() const;
};

// A result's shape and dtype, as torch has them.
struct OutputTypes {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<at::ScalarType> dtypes;
};

// Adds the custom call to the builder of `inputs`, which must not be empty.
// `output_shape` is a tuple of the results' shapes. Returns one op a result.
std::vector<xla::XlaOp> BuildCustomCall(std::vector<xla::XlaOp> inputs,
                                        const xla::Shape& output_shape,
                                        const CustomCallConfig& config);

// The node keeps upstream's kinds, xla::custom_call and xla::gpu_custom_call,
// by which metrics and IR dumps name it.
class CustomCallNode : public torch_xla::XlaNode {
 public:
  // `inputs` are those of the call, and then those that results alias, once
  // more (see MakeCustomCallNode). `hash_seed` stands for `output_shape` and
  // `config`. XlaNode's hash covers, beside it, the kind and the operands; the
  // shape is not in it.
  CustomCallNode(torch::lazy::OpKind kind, torch::lazy::OpList inputs,
                 const xla::Shape& output_shape, CustomCallConfig config,
                 torch::lazy::hash_t hash_seed);

  torch::lazy::NodePtr Clone(torch::lazy::OpList operands) const override;
  torch_xla::XlaOpVector Lower(
      torch_xla::LoweringContext* loctx) const override;
  std::string ToString() const override;

 private:
  CustomCallConfig config_;
  torch::lazy::hash_t hash_seed_;
};

// The node of a call on `device`.
torch::lazy::NodePtr MakeCustomCallNode(
    torch::lazy::OpKind kind, torch::lazy::OpList inputs,
    const torch::lazy::BackendDevice& device, const OutputTypes& outputs,
    CustomCallConfig config);

// Traces one call: makes the node and a tensor for each of its results, on the
// device of `inputs`. The arguments are checked already (arguments.h). In eager
// mode the call has run, all its results in one program, when this returns. If
// it runs on parts, only the first results, those that `shards` are of, have
// tensors: others, workspaces, are no whole of anything. Nor has the workspace
// of a row-major call that cuDNN runs (RunsByCudnn in gpu_custom_call.h).
std::vector<torch_xla::XLATensorPtr> TraceCustomCall(
    torch::lazy::OpKind kind,
    const std::vector<torch_xla::XLATensorPtr>& inputs,
    const OutputTypes& outputs, CustomCallConfig config,
    const std::vector<Shard>& shards = {});

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_CUSTOM_CALL_H_
