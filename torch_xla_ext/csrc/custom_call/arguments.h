// Checks a custom call's Python arguments and converts them to C++.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_ARGUMENTS_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_ARGUMENTS_H_

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/custom_call.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// Every function here throws pybind11::type_error or pybind11::value_error. The
// text names the target, the argument, what was expected and what was passed.

// Parses a non-empty str.
std::string ParseTarget(const pybind11::handle& target);

// Returns the bytes of the argument `name`: `value` is bytes, or a str, which
// is encoded as UTF-8.
std::string ParseBytes(const std::string& target, const char* name,
                       const pybind11::handle& value);

// Parses a non-empty sequence of XLA tensors on one device.
std::vector<torch_xla::XLATensorPtr> ParseInputs(
    const std::string& target, const pybind11::handle& inputs);

// Parses equally many shapes and dtypes, at least one: dimensions must not be
// negative, sizes in bytes must fit into 63 bits, and XLA must have the dtypes.
OutputTypes ParseOutputTypes(const std::string& target,
                             const pybind11::handle& shapes,
                             const pybind11::handle& dtypes);

// Parses a dict {output: input}, or None. An output and its input must have the
// same shape and dtype, and each may be in one pair only. `inputs` must have
// been checked.
std::map<int64_t, int64_t> ParseAliases(const std::string& target,
                                        const pybind11::handle& aliases,
                                        const pybind11::handle& inputs,
                                        const OutputTypes& outputs);

// Parses the argument `argument`, a dict {output: layout} or {input: layout}
// for arrays with these ranks, or None. A layout lists an array's dimensions in
// memory order, the slowest-changing first. `what` is "output" or "input".
std::map<int64_t, std::vector<int64_t>> ParseLayouts(
    const std::string& target, const char* argument, const char* what,
    const pybind11::handle& layouts, const std::vector<size_t>& ranks);

// Checks that `num_hidden` is at least 0, and less than the number of outputs.
void CheckNumHiddenResults(const std::string& target, int64_t num_hidden,
                           const OutputTypes& outputs);

// Environment variables can make torch_xla store float32 as bfloat16 or int64
// as int32 on the device. A kernel that relies on torch's dtypes would then
// read the wrong bytes, so such inputs and outputs are rejected.
void CheckNothingIsNarrowed(const std::string& target,
                            const std::vector<torch_xla::XLATensorPtr>& inputs,
                            const OutputTypes& outputs);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_ARGUMENTS_H_
