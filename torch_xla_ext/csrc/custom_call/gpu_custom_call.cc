#include "torch_xla_ext/csrc/custom_call/gpu_custom_call.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/registry/text.h"

namespace torch_xla_ext {
namespace {

[[noreturn]] void ThrowWouldBeReplaced(const std::string& target,
                                       const char* what,
                                       std::string_view text) {
  throw std::invalid_argument(
      "custom call " + Quoted(target) + ": " + what + Quoted(text) +
      ": XLA:GPU would parse it as its own JSON configuration, and the kernel "
      "would receive an empty payload; prepend a byte that begins no JSON, for "
      "example b\"\\x01\"");
}

// The white space of JSON.
constexpr std::string_view kSpace = " \t\n\r";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Whether XLA's GpuBackendConfig may have a field of this name, as in the
// message or in JSON: "custom_call_backend_config", "customCallBackendConfig".
bool MayBeField(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '\\') return true;  // an escape may stand for any character
    if (c != '_') plain += c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
  }
  constexpr std::string_view kConfig = "config";
  if (plain.size() >= kConfig.size() &&
      plain.compare(plain.size() - kConfig.size(), kConfig.size(), kConfig) ==
          0) {
    return true;
  }
  for (const std::string_view field :
       {"operationqueueid", "waitonoperationqueues", "forceearliestschedule",
        "reificationcost", "devicetype"}) {
    if (plain == field) return true;
  }
  return false;
}

// Whether XLA:GPU may parse a payload as its message. If the first name is not
// that of a field, XLA:GPU cannot, and passes the payload on unchanged.
bool MayBeGpuBackendConfig(std::string_view payload) {
  const std::string_view text = Trimmed(payload);
  if (text.size() < 2 || text.front() != '{' || text.back() != '}') {
    return false;
  }
  std::string_view inside = Trimmed(text.substr(1, text.size() - 2));
  if (inside.empty()) return true;
  // Protobuf also reads names in single quotes, and without any.
  const char quote = inside.front();
  if (quote == '"' || quote == '\'') {
    const std::string_view rest = inside.substr(1);
    const size_t end = rest.find(quote);
    return end != rest.npos && MayBeField(rest.substr(0, end));
  }
  return MayBeField(Trimmed(inside.substr(0, inside.find(':'))));
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

void CheckGpuPayload(const std::string& target, const std::string& payload) {
  if (!MayBeGpuBackendConfig(payload)) return;
  constexpr size_t kShown = 40;
  ThrowWouldBeReplaced(target, "payload is ",
                       std::string_view(payload).substr(0, kShown));
}

void CheckBackendConfig(const std::string& target,
                        const std::string& backend_config) {
  const std::string_view text = Trimmed(backend_config);
  if (text.size() < 2 || text.front() != '{' || text.back() != '}') return;
  if (!Trimmed(text.substr(1, text.size() - 2)).empty()) return;
  ThrowWouldBeReplaced(target, "backend_config is ", "{}");
}

}  // namespace torch_xla_ext
