#include "torch_xla_ext/csrc/calls/gpu_custom_call.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/calls/text.h"

namespace torch_xla_ext {
namespace {

[[noreturn]] void ThrowWouldBeReplaced(const std::string& target,
                                       const char* what,
                                       std::string_view text) {
  throw std::invalid_argument(
      "custom call " + Quoted(target) + ": " + what + Quoted(text) +
      ": XLA:GPU would parse it as its own JSON configuration, and the "
      "kernel would get an empty payload; put a byte with which no JSON begins "
      "in front of it, for example b\"\\x01\"");
}

}  // namespace

CustomCallConfig GpuCustomCallConfig(std::string target) {
  CustomCallConfig config;
  config.api_version = target == kDefaultGpuCustomCallTarget
                           ? xla::API_VERSION_STATUS_RETURNING
                           : xla::API_VERSION_STATUS_RETURNING_UNIFIED;
  config.target = std::move(target);
  config.row_major = true;
  config.single_result_is_tuple = true;
  return config;
}

std::vector<xla::XlaOp> BuildGpuCustomCall(std::vector<xla::XlaOp> inputs,
                                           const xla::Shape& output_shape,
                                           const std::string& payload,
                                           const std::string& target) {
  CustomCallConfig config = GpuCustomCallConfig(target);
  config.payload = payload;
  return BuildCustomCall(std::move(inputs), output_shape, config);
}

bool RunsByCudnn(const std::string& target) {
  return target.rfind("__cudnn$", 0) == 0;
}

void CheckGpuPayload(const std::string& target, const std::string& payload) {
  if (RunsByCudnn(target)) return;
  std::string_view text = payload;
  const size_t begin = text.find_first_not_of(" \t\n\v\f\r");
  text.remove_prefix(begin == text.npos ? text.size() : begin);
  if (text.substr(0, 1) != "{" && text.substr(0, 4) != "null") return;
  ThrowWouldBeReplaced(target, "payload begins with ", text.substr(0, 4));
}

void CheckBackendConfig(const std::string& target,
                        const std::string& backend_config) {
  std::string text;
  for (const char c : backend_config) {
    if (std::string_view(" \t\n\v\f\r").find(c) == std::string_view::npos) {
      text += c;
    }
    if (text.size() > 2) return;
  }
  if (text == "{}") ThrowWouldBeReplaced(target, "backend_config is ", text);
}

}  // namespace torch_xla_ext
