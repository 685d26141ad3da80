// The IR node of a custom call, and its lowering to HLO.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_CUSTOM_CALL_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_CUSTOM_CALL_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// The properties of an HLO custom call besides its operands and its result's
// shape.
//
// Two calls that differ in any member run different programs. Hash() and
// ToString() therefore cover every member; a member that is added here is added
// to both.
struct CustomCallConfig {
  std::string target;
  // The payload of an untyped call, or the attributes of an FFI call. XLA calls
  // it backend_config.
  std::string payload;
  int api_version = 0;
  bool has_side_effect = false;
  // Forces the layouts of operands and results (row-major unless the members
  // below say otherwise), instead of letting the producer and the compiler
  // choose. An untyped kernel receives only pointers, so it must know the
  // layouts.
  bool row_major = false;
  // For calls with `row_major`, the layouts of operands that are not row-major,
  // by the operand's index: the dimensions, the slowest-changing first.
  std::map<int64_t, std::vector<int64_t>> operand_layouts;
  // The same for results, which must be a tuple.
  std::map<int64_t, std::vector<int64_t>> result_layouts;
  // How many of the last results have no tensors, such as workspaces: XLA may
  // change their shapes when it compiles the program, so nothing may read them.
  int64_t num_hidden_results = 0;
  // A single result is a tuple with one element, just as several results are a
  // tuple.
  bool single_result_is_tuple = false;
  // The XLA types of the operands' torch dtypes; empty to accept any type. Some
  // of torch_xla's operations produce values whose XLA type differs from their
  // tensor's dtype: the indices of torch.cummax are int64 in torch and s32 in
  // XLA.
  std::vector<xla::PrimitiveType> operand_types;
  std::map<std::string, std::string> frontend_attributes;
  // For a call that XLA divides among devices, its key in
  // torch_xla_ext.sharding. Empty for a call that each device runs as a whole.
  std::string partition;
  // Maps results that are written into an operand's buffer to the operand.
  std::map<int64_t, int64_t> aliases;

  torch::lazy::hash_t Hash() const;
  std::string ToString() const;
};

// The results' torch shapes and dtypes.
struct OutputTypes {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<at::ScalarType> dtypes;
};

// A result, and the operand whose buffer it shares.
using OperandAlias =
    std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>;

// The tuple shape of a call's results, with their layouts; `results` is the
// tuple without layouts.
xla::Shape ResultShape(const CustomCallConfig& config,
                       const xla::Shape& results);

// `shape` with the layout of the call's operand `index`.
xla::Shape OperandShape(const CustomCallConfig& config, size_t index,
                        const xla::Shape& shape);

// The aliases of a call, whose results may be a tuple.
std::vector<OperandAlias> OperandAliases(const CustomCallConfig& config,
                                         bool is_tuple);

// Adds the custom call to the builder of `inputs`, which must not be empty.
// `output_shape` is a tuple of the results' shapes. Returns one op per result.
std::vector<xla::XlaOp> BuildCustomCall(std::vector<xla::XlaOp> inputs,
                                        const xla::Shape& output_shape,
                                        const CustomCallConfig& config);

// The node keeps upstream's kinds, xla::custom_call and xla::gpu_custom_call,
// which name it in metrics and IR dumps.
class CustomCallNode : public torch_xla::XlaNode {
 public:
  // `inputs` are the call's inputs, followed by a second copy of those that
  // results alias (see MakeCustomCallNode). `hash_seed` covers `output_shape`
  // and `config`. XlaNode's hash consists of the seed, the kind and the
  // operands; it does not include the shape.
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
// device of `inputs`. The arguments must have been checked (arguments.h). In
// eager mode the call has run, with all its results in one program, when this
// returns. Hidden results have no tensors.
std::vector<torch_xla::XLATensorPtr> TraceCustomCall(
    torch::lazy::OpKind kind,
    const std::vector<torch_xla::XLATensorPtr>& inputs,
    const OutputTypes& outputs, CustomCallConfig config);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_CUSTOM_CALL_H_
