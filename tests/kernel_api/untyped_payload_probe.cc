// The kernels' parser of untyped payloads as a C function, for property tests.
#include <algorithm>
#include <cstring>
#include <string>

#include "tests/kernel_api/describe.h"
#include "tests/kernel_api/gather.h"

namespace {

using torch_xla_ext::BufferView;
using torch_xla_ext::Signature;
using torch_xla_ext::Status;
using torch_xla_ext::internal::UntypedPayload;

// Formats the parsed values: "F32[2, 3] absent … | 1 -2 0.5 …".
template <typename Params>
std::string Describe(const UntypedPayload& payload, const Params& params) {
  std::string text;
  for (const BufferView& view : payload.views) {
    text += view.dtype == torch_xla_ext::DType::kAbsent
                ? "absent"
                : torch_xla_ext::internal::DTypeName(view.dtype) +
                      torch_xla_ext::internal::DimsText(view.dims, view.rank);
    text += ' ';
  }
  return text + "| " + DescribeParams(params);
}

// Parses like the untyped entry of a kernel, and writes "ok: " and the parsed
// values, or the error, into `text`, which has `room` bytes.
template <typename Params>
void Probe(const Signature& signature, const char* data, size_t size,
           char* text, size_t room) {
  const uint64_t hash =
      torch_xla_ext::SchemaHash(torch_xla_ext::SchemaText<Params>(signature));
  UntypedPayload payload;
  Params params{};
  Status status = torch_xla_ext::internal::ParseUntypedPayload(
      signature, hash, torch_xla_ext::internal::PackedSize<Params>(), data,
      size, &payload);
  if (status.ok()) {
    status = torch_xla_ext::internal::UnpackParams(
        payload.params, payload.params_size, &params);
  }
  if (status.ok()) status = torch_xla_ext::internal::CheckParams(params);
  const std::string result =
      status.ok() ? "ok: " + Describe(payload, params) : status.message();
  const size_t length = std::min(result.size(), room - 1);
  std::memcpy(text, result.data(), length);
  text[length] = '\0';
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void ProbeUntypedPayload(const char* data, size_t size, char* text,
                                  size_t room) {
  Probe<GatherParams>(kGather, data, size, text, room);
}

EXPORTED void ProbeOptions(const char* data, size_t size, char* text,
                           size_t room) {
  Probe<OptionsParams>(kOptions, data, size, text, room);
}

EXPORTED const char* ProbeSchema() {
  static const std::string text =
      torch_xla_ext::SchemaText<GatherParams>(kGather);
  return text.c_str();
}

EXPORTED const char* ProbeOptionsSchema() {
  static const std::string text =
      torch_xla_ext::SchemaText<OptionsParams>(kOptions);
  return text.c_str();
}
