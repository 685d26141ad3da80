// Reads the text with which a call specifies its operator's arguments, and
// where to store the results: words separated by spaces, which
// torch_xla_ext/launchers/torch_operator/argument_encoding.py writes and
// documents.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TORCH_OPERATOR_ARGUMENTS_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TORCH_OPERATOR_ARGUMENTS_H_

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "torch_xla_ext/csrc/launchers/torch_operator.h"

namespace torch_xla_ext {

// The arguments of an operator with this schema, in its order.
// Throws std::invalid_argument if the text does not fit the schema.
torch::jit::Stack ReadArguments(const c10::FunctionSchema& schema,
                                const OperatorCall& call);

// Copies an operator's results to the call's result buffers. Throws
// std::runtime_error if the shapes or dtypes differ from those that the call
// was traced with.
void StoreReturns(const torch::jit::Stack& returns, const OperatorCall& call);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TORCH_OPERATOR_ARGUMENTS_H_
