#include "torch_xla_ext/csrc/gpu_custom_call.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/text.h"

namespace torch_xla_ext {

CustomCallConfig GpuCustomCallConfig(std::string target, std::string payload) {
  CustomCallConfig config;
  config.api_version = target == kDefaultGpuCustomCallTarget
                           ? xla::API_VERSION_STATUS_RETURNING
                           : xla::API_VERSION_STATUS_RETURNING_UNIFIED;
  config.target = std::move(target);
  config.backend_config = std::move(payload);
  config.row_major = true;
  config.single_result_is_tuple = true;
  return config;
}

void CheckGpuPayload(const std::string& target, const std::string& payload) {
  std::string_view text = payload;
  const size_t begin = text.find_first_not_of(" \t\n\v\f\r");
  text.remove_prefix(begin == text.npos ? text.size() : begin);
  if (text.substr(0, 1) != "{" && text.substr(0, 4) != "null") return;
  throw std::invalid_argument(
      "custom call " + Quoted(target) + ": payload begins with " +
      Quoted(text.substr(0, 4)) +
      ": XLA:GPU would read it as a configuration of its own, in JSON, and the "
      "kernel would get an empty payload; put a byte with which no JSON begins "
      "in front of it, b\"\\x01\" for instance");
}

}  // namespace torch_xla_ext

namespace torch_xla {

std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload, const std::string& target) {
  return torch_xla_ext::BuildCustomCall(
      inputs, output_shape,
      torch_xla_ext::GpuCustomCallConfig(target, payload));
}

std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload) {
  return BuildGpuCustomCall(inputs, output_shape, payload,
                            torch_xla_ext::kDefaultGpuCustomCallTarget);
}

}  // namespace torch_xla
