#include <cctype>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/partitioning/partitioning.h"
#include "torch_xla_ext/csrc/registry/text.h"

namespace torch_xla_ext {
namespace {

// MLIR's name of an element type, as StableHLO uses it.
const char* ElementType(xla::PrimitiveType type) {
  switch (type) {
    case xla::PRED:
      return "i1";
    case xla::S8:
      return "i8";
    case xla::S16:
      return "i16";
    case xla::S32:
      return "i32";
    case xla::S64:
      return "i64";
    case xla::U8:
      return "ui8";
    case xla::U16:
      return "ui16";
    case xla::U32:
      return "ui32";
    case xla::U64:
      return "ui64";
    case xla::F16:
      return "f16";
    case xla::F32:
      return "f32";
    case xla::F64:
      return "f64";
    case xla::C64:
      return "complex<f32>";
    case xla::C128:
      return "complex<f64>";
    case xla::BF16:
      return "bf16";
    case xla::F8E5M2:
      return "f8E5M2";
    case xla::F8E4M3FN:
      return "f8E4M3FN";
    default:
      throw std::runtime_error("no array of XLA's element type " +
                               std::to_string(static_cast<int>(type)) +
                               " can be in a program for several devices");
  }
}

std::string TensorType(xla::PrimitiveType type,
                       const std::vector<int64_t>& shape) {
  std::ostringstream out;
  out << "tensor<";
  for (const int64_t size : shape) out << size << 'x';
  out << ElementType(type) << '>';
  return out.str();
}

// A string attribute with arbitrary bytes.
std::string StringAttribute(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string text = "\"";
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (std::isprint(code) && byte != '"' && byte != '\\') {
      text += byte;
    } else {
      text += {'\\', kDigits[code >> 4], kDigits[code & 15]};
    }
  }
  return text + '"';
}

// A layout's text: the dimensions, the fastest-changing first.
std::string Layout(const std::vector<int64_t>& slowest_first) {
  std::ostringstream out;
  out << "dense<[";
  for (size_t i = slowest_first.size(); i-- > 0;) {
    out << slowest_first[i] << (i == 0 ? "" : ", ");
  }
  out << "]> : tensor<" << slowest_first.size() << "xindex>";
  return out.str();
}

std::vector<int64_t> RowMajorOrder(size_t rank) {
  std::vector<int64_t> order(rank);
  for (size_t i = 0; i < rank; ++i) order[i] = static_cast<int64_t>(i);
  return order;
}

std::string Aliases(const CustomCallConfig& config, bool is_tuple) {
  std::vector<std::string> aliases;
  for (const auto& [result, operand] : config.aliases) {
    aliases.push_back(
        "#stablehlo.output_operand_alias<output_tuple_indices = [" +
        (is_tuple ? std::to_string(result) : "") + "], operand_index = " +
        std::to_string(operand) + ", operand_tuple_indices = []>");
  }
  return Joined(aliases);
}

// The operation `%sI`, the sum of the results `part` of each group of devices.
std::string Sum(size_t i, const std::string& part, xla::PrimitiveType type,
                const std::string& tensor,
                const std::vector<std::vector<int64_t>>& groups) {
  std::vector<std::string> rows;
  for (const auto& group : groups) {
    std::vector<std::string> row;
    for (const int64_t device : group) row.push_back(std::to_string(device));
    rows.push_back("[" + Joined(row) + "]");
  }
  const std::string scalar = std::string("tensor<") + ElementType(type) + ">";
  std::ostringstream out;
  out << "    %s" << i << " = \"stablehlo.all_reduce\"(" << part << ") ({\n"
      << "      ^bb0(%x: " << scalar << ", %y: " << scalar << "):\n"
      << "        %z = stablehlo.add %x, %y : " << scalar << "\n"
      << "        stablehlo.return %z : " << scalar << "\n    }) {"
      << "replica_groups = dense<[" << Joined(rows) << "]> : tensor<"
      << groups.size() << "x" << groups[0].size() << "xi64>, "
      << "channel_handle = #stablehlo.channel_handle<handle = " << i + 1
      << ", type = 1>, use_global_device_ids} : (" << tensor << ") -> "
      << tensor << "\n";
  return out.str();
}

// The attributes of the kernel's call.
std::string Attributes(const CustomCallConfig& config, const DeviceCall& call) {
  const size_t num_results = call.results.shapes.size();
  std::ostringstream out;
  out << "api_version = " << config.api_version << " : i32, backend_config = ";
  if (config.api_version == xla::API_VERSION_TYPED_FFI) {
    out << (call.payload.empty() ? "{}" : call.payload);
  } else {
    out << StringAttribute(call.payload);
  }
  if (config.has_side_effect) out << ", has_side_effect = true";
  if (!config.aliases.empty()) {
    out << ", output_operand_aliases = [" << Aliases(config, num_results != 1)
        << "]";
  }
  if (!config.row_major) return out.str();
  std::vector<std::string> operands;
  for (size_t i = 0; i < call.operand_shapes.size(); ++i) {
    const auto layout = config.operand_layouts.find(static_cast<int64_t>(i));
    operands.push_back(Layout(layout == config.operand_layouts.end()
                                  ? RowMajorOrder(call.operand_shapes[i].size())
                                  : layout->second));
  }
  std::vector<std::string> results;
  for (size_t i = 0; i < num_results; ++i) {
    const auto layout = config.result_layouts.find(static_cast<int64_t>(i));
    results.push_back(Layout(layout == config.result_layouts.end()
                                 ? RowMajorOrder(call.results.shapes[i].size())
                                 : layout->second));
  }
  out << ", operand_layouts = [" << Joined(operands) << "], result_layouts = ["
      << Joined(results) << "]";
  return out.str();
}

}  // namespace

std::string DeviceProgram(const CustomCallConfig& config,
                          const DeviceCall& call) {
  std::vector<std::string> parameters, operand_types, operands;
  for (size_t i = 0; i < call.operand_shapes.size(); ++i) {
    operands.push_back("%a" + std::to_string(i));
    operand_types.push_back(
        TensorType(config.operand_types.at(i), call.operand_shapes[i]));
    parameters.push_back(operands[i] + ": " + operand_types[i]);
  }
  const size_t num_results = call.results.shapes.size();
  std::vector<std::string> result_types, results;
  std::string sums;
  for (size_t i = 0; i < num_results; ++i) {
    const xla::PrimitiveType type = torch_xla::MakeXlaPrimitiveType(
        call.results.dtypes[i], /*device=*/nullptr);
    result_types.push_back(TensorType(type, call.results.shapes[i]));
    results.push_back(num_results == 1 ? "%r" : "%r#" + std::to_string(i));
    if (i < call.num_traced_results && !call.sums[i].empty()) {
      sums += Sum(i, results[i], type, result_types[i], call.sums[i]);
      results[i] = "%s" + std::to_string(i);
    }
  }
  const std::string all_types = Joined(result_types);
  results.resize(call.num_traced_results);
  result_types.resize(call.num_traced_results);
  // The results of the program have the structure of the traced call's.
  const bool is_tuple = call.num_traced_results != 1;
  const std::string type =
      is_tuple ? "tuple<" + Joined(result_types) + ">" : result_types[0];
  std::ostringstream out;
  out << "module {\n  func.func @main(" << Joined(parameters) << ") -> " << type
      << " {\n    %r" << (num_results == 1 ? "" : ":")
      << (num_results == 1 ? "" : std::to_string(num_results))
      << " = stablehlo.custom_call @" << StringAttribute(config.target) << "("
      << Joined(operands) << ") {" << Attributes(config, call) << "} : ("
      << Joined(operand_types) << ") -> "
      << (num_results == 1 ? all_types : "(" + all_types + ")") << "\n";
  out << sums;
  if (is_tuple) {
    out << "    %t = stablehlo.tuple " << Joined(results) << " : " << type
        << "\n";
  }
  out << "    return " << (is_tuple ? "%t" : results[0]) << " : " << type
      << "\n  }\n}\n";
  return out.str();
}

}  // namespace torch_xla_ext
