// The payload of an untyped call, which otherwise passes a kernel only
// pointers. Version 1, little-endian, without padding:
//
//   u8   magic          1. No JSON begins with this byte: XLA:GPU would parse a
//                       JSON payload as its own configuration.
//   u8   version        1
//   u8   num_operands   of the signature, including absent ones
//   u8   num_results
//   u32  params_size    bytes
//   u64  schema         FNV-1a of the kernel's schema, the text of SchemaText()
//   for each operand, then each result:
//     u8   dtype        xla::PrimitiveType; 0 for an absent operand
//     u8   rank         0 for an absent operand
//     i64  dims[rank]
//   params_size bytes of parameters, one after another: numbers; strings and
//   arrays as a u32, how many bytes or numbers, and these; the parameters of
//   nested structs
//
// xla_kernels/signature/untyped_payload.py packs it, from the same schema.
#ifndef TORCH_XLA_EXT_UNTYPED_PAYLOAD_H_
#define TORCH_XLA_EXT_UNTYPED_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/buffer.h"
#include "torch_xla_ext/byte_reader.h"
#include "torch_xla_ext/check.h"
#include "torch_xla_ext/dtype.h"
#include "torch_xla_ext/params.h"
#include "torch_xla_ext/signature.h"
#include "torch_xla_ext/status.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

static_assert(
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
    "untyped payloads are little-endian, and are read without conversion");

inline constexpr uint8_t kUntypedPayloadMagic = 1;
inline constexpr uint8_t kUntypedPayloadVersion = 1;
inline constexpr int kMaxRank = 64;  // torch's

namespace {  // NOLINT: as in params.h

// The text on which caller and kernel must agree: the signature and the
// parameters.
template <typename Params>
std::string SchemaText(const Signature& signature) {
  return std::string(signature.text) + "\nparams(" +
         internal::ParamsText<Params>() + ")";
}

}  // namespace

constexpr uint64_t SchemaHash(std::string_view schema) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : schema) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

namespace internal {

// A parsed payload. `views` have no data: the payload only describes the arrays
// to which the call's pointers point.
struct UntypedPayload {
  std::vector<BufferView> views;  // operands, then results
  std::vector<int64_t> dims;      // the views point into this
  const char* params = nullptr;   // params_size bytes of the payload
  size_t params_size = 0;
};

inline Status ExpectedButGot(const char* what, uint64_t expected,
                             uint64_t came) {
  return Status::Error("payload: expected ", what, " ", expected, " but got ",
                       came);
}

// Reads one dimension list into `dims`, with room for it, and checks that the
// array's bytes can be counted.
inline Status ReadView(ByteReader* reader, const std::string& name,
                       std::vector<int64_t>* dims, BufferView* view) {
  uint8_t dtype = 0;
  uint8_t rank = 0;
  if (!reader->Read(&dtype) || !reader->Read(&rank)) {
    return Status::Error("payload: truncated at ", name);
  }
  view->dtype = static_cast<DType>(dtype);
  view->rank = rank;
  const DTypeInfo* info = FindDType(view->dtype);
  if (info == nullptr && (view->dtype != DType::kAbsent || rank != 0)) {
    return Status::Error("payload: ", name, ": unknown dtype ",
                         static_cast<int>(dtype));
  }
  if (rank > kMaxRank) {
    return Status::Error("payload: ", name, ": expected a rank of at most ",
                         kMaxRank, " but got ", static_cast<int>(rank));
  }
  int64_t bytes = info == nullptr ? 0 : static_cast<int64_t>(info->byte_width);
  for (int i = 0; i < rank; ++i) {
    int64_t dim = 0;
    if (!reader->Read(&dim)) {
      return Status::Error("payload: truncated at ", name);
    }
    if (dim < 0) {
      return Status::Error("payload: ", name, ": dimension ", i,
                           " is negative: ", dim);
    }
    // An empty array has no bytes, but its other dimensions are multiplied.
    if (__builtin_mul_overflow(bytes, dim == 0 ? 1 : dim, &bytes)) {
      return Status::Error("payload: ", name, ": 2^63 bytes or more");
    }
    dims->push_back(dim);
  }
  return Status::Ok();
}

// Reads and checks a payload of `size` bytes at `data`: that it is a version 1
// payload of this schema, complete and without trailing bytes, and that it
// matches `signature`. Reads no byte beyond `size`. `params_size` is
// PackedSize().
inline Status ParseUntypedPayload(const Signature& signature,
                                  uint64_t schema_hash, size_t params_size,
                                  const char* data, size_t size,
                                  UntypedPayload* payload) {
  ByteReader reader(data, size);
  uint8_t magic = 0, version = 0, num_operands = 0, num_results = 0;
  uint32_t packed_params_size = 0;
  uint64_t packed_schema_hash = 0;
  if (!reader.Read(&magic)) return Status::Error("payload: is empty");
  if (magic != kUntypedPayloadMagic) {
    return ExpectedButGot("the magic byte", kUntypedPayloadMagic, magic);
  }
  if (!reader.Read(&version)) return Status::Error("payload: truncated");
  if (version != kUntypedPayloadVersion) {
    return ExpectedButGot("version", kUntypedPayloadVersion, version);
  }
  if (!reader.Read(&num_operands) || !reader.Read(&num_results) ||
      !reader.Read(&packed_params_size) || !reader.Read(&packed_schema_hash)) {
    return Status::Error("payload: truncated");
  }
  if (packed_schema_hash != schema_hash) {
    return Status::Error(
        "payload: was packed for another version of the kernel; pack it with "
        "the schema of the registered one");
  }
  if (num_operands != signature.num_operands) {
    return ExpectedButGot("the number of operands to be",
                          signature.num_operands, num_operands);
  }
  if (num_results != signature.num_results) {
    return ExpectedButGot("the number of results to be", signature.num_results,
                          num_results);
  }
  if (params_size != kVariableSize && packed_params_size != params_size) {
    return ExpectedButGot("the size of the parameters to be", params_size,
                          packed_params_size);
  }
  const int count = signature.num_arguments();
  payload->views.assign(count, BufferView());
  payload->dims.clear();
  for (int i = 0; i < count; ++i) {
    XLA_KERNEL_RETURN_IF_ERROR(ReadView(&reader, ArgumentName(signature, i),
                                        &payload->dims, &payload->views[i]));
  }
  // Set only when `dims` is complete: growing moves its elements.
  const int64_t* dims = payload->dims.data();
  for (BufferView& view : payload->views) {
    view.dims = dims;
    dims += view.rank;
  }
  payload->params_size = packed_params_size;
  payload->params = reader.Take(packed_params_size);
  if (payload->params == nullptr) {
    return Status::Error("payload: truncated at the parameters");
  }
  if (reader.left() != 0) {
    return Status::Error("payload: ", reader.left(),
                         " bytes follow the end of the payload");
  }
  return CheckArguments(signature, payload->views.data());
}

}  // namespace internal
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_UNTYPED_PAYLOAD_H_
