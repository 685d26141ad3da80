// The kernels' descriptor parser as a C function, for property tests.
#include <algorithm>
#include <cstring>
#include <string>

#include "tests/kernel_api/gather.h"

namespace {

using torch_xla_ext::BufferView;
using torch_xla_ext::Signature;
using torch_xla_ext::Status;
using torch_xla_ext::internal::Descriptor;

// Formats the parsed values: "F32[2, 3] absent … | 1 -2 0.5 …".
std::string Describe(const Descriptor& descriptor, const GatherParams& params) {
  std::string text;
  for (const BufferView& view : descriptor.views) {
    text += view.dtype == torch_xla_ext::DType::kAbsent
                ? "absent"
                : torch_xla_ext::internal::DTypeName(view.dtype) +
                      torch_xla_ext::internal::DimsText(view.dims, view.rank);
    text += ' ';
  }
  text += '|';
  torch_xla_ext::internal::ForEachField<GatherParams>([&](const auto& field) {
    text += ' ';
    text += torch_xla_ext::internal::NumberText(params.*field.member);
  });
  return text;
}

}  // namespace

// Parses like TestGather's untyped entry, and writes "ok: " and the parsed
// values, or the error, into `text`, which has `room` bytes.
extern "C" __attribute__((visibility("default"))) void ProbeDescriptor(
    const char* data, size_t size, char* text, size_t room) {
  const uint64_t hash = torch_xla_ext::SchemaHash(
      torch_xla_ext::SchemaText<GatherParams>(kGather));
  Descriptor descriptor;
  GatherParams params{};
  Status status = torch_xla_ext::internal::ParseDescriptor(
      kGather, hash, torch_xla_ext::internal::PackedSize<GatherParams>(), data,
      size, &descriptor);
  if (status.ok()) {
    status = torch_xla_ext::internal::UnpackParams(descriptor.params, &params);
  }
  if (status.ok()) status = torch_xla_ext::internal::CheckParams(params);
  const std::string result =
      status.ok() ? "ok: " + Describe(descriptor, params) : status.message();
  const size_t length = std::min(result.size(), room - 1);
  std::memcpy(text, result.data(), length);
  text[length] = '\0';
}

extern "C" __attribute__((visibility("default"))) const char* ProbeSchema() {
  static const std::string text =
      torch_xla_ext::SchemaText<GatherParams>(kGather);
  return text.c_str();
}
