#include "torch_xla_ext/csrc/pjrt_shim/topology.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_xla_ext::pjrt_shim {
namespace {

// Protobuf's own limit on nested messages.
constexpr int kMaxDepth = 100;
constexpr int kMaxVarintBytes = 10;

// https://protobuf.dev/programming-guides/encoding
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint64_t number;
  uint64_t wire_type;
  size_t begin;  // at the tag
  size_t value;  // after the tag, and after the length for kBytes
  size_t end;
};

std::optional<uint64_t> TakeVarint(std::string_view message, size_t* position) {
  uint64_t value = 0;
  for (int i = 0; i < kMaxVarintBytes && *position < message.size(); ++i) {
    const auto byte = static_cast<uint8_t>(message[(*position)++]);
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// The size of the value at `position`. If the value has a length
// prefix, `position` moves past it.
std::optional<uint64_t> TakeSize(std::string_view message, uint64_t wire_type,
                                 size_t* position) {
  size_t end = *position;
  switch (wire_type) {
    case kVarint:
      if (!TakeVarint(message, &end)) return std::nullopt;
      return end - *position;
    case kFixed64:
      return 8;
    case kBytes:
      return TakeVarint(message, position);
    case kFixed32:
      return 4;
    default:
      return std::nullopt;  // groups are obsolete
  }
}

// nullopt if the bytes are not a message but, for example, text.
std::optional<std::vector<Field>> Parse(std::string_view message) {
  std::vector<Field> fields;
  for (size_t position = 0; position < message.size();) {
    Field field = {};
    field.begin = position;
    const std::optional<uint64_t> tag = TakeVarint(message, &position);
    if (!tag || *tag >> 3 == 0) return std::nullopt;
    field.number = *tag >> 3;
    field.wire_type = *tag & 7;
    const std::optional<uint64_t> size =
        TakeSize(message, field.wire_type, &position);
    if (!size || *size > message.size() - position) return std::nullopt;
    field.value = position;
    field.end = position += *size;
    fields.push_back(field);
  }
  return fields;
}

bool IsMapEntry(std::string_view message) {
  const std::optional<std::vector<Field>> fields = Parse(message);
  return fields && fields->size() == 2 && (*fields)[0].number == 1 &&
         (*fields)[1].number == 2;
}

// A field in wire format, and the number of the map that it is an entry of, or
// 0.
struct Written {
  uint64_t map;
  std::string text;
};

std::string CanonicalAt(std::string_view message, int depth) {
  const std::optional<std::vector<Field>> fields = Parse(message);
  if (!fields || depth == kMaxDepth) return std::string(message);
  std::vector<Written> written;
  for (const Field& field : *fields) {
    const std::string_view value =
        message.substr(field.value, field.end - field.value);
    std::string text(message.substr(field.begin, field.value - field.begin));
    const bool is_bytes = field.wire_type == kBytes;
    text += is_bytes ? CanonicalAt(value, depth + 1) : std::string(value);
    const bool is_entry = is_bytes && IsMapEntry(value);
    written.push_back({is_entry ? field.number : 0, std::move(text)});
  }
  std::string result;
  for (auto begin = written.begin(); begin != written.end();) {
    const auto end = std::find_if(
        begin, written.end(),
        [begin](const Written& field) { return field.map != begin->map; });
    if (begin->map != 0) {
      std::sort(begin, end, [](const Written& one, const Written& other) {
        return one.text < other.text;
      });
    }
    for (; begin != end; ++begin) result += begin->text;
  }
  return result;
}

PJRT_TopologyDescription_Serialize* plugin_serialize = nullptr;

PJRT_Error* Serialize(PJRT_TopologyDescription_Serialize_Args* args) {
  if (PJRT_Error* error = plugin_serialize(args)) return error;
  auto* canonical = new std::string(Canonical(
      std::string(args->serialized_bytes, args->serialized_bytes_size)));
  args->serialized_topology_deleter(args->serialized_topology);
  args->serialized_bytes = canonical->data();
  args->serialized_bytes_size = canonical->size();
  args->serialized_topology =
      reinterpret_cast<PJRT_SerializedTopology*>(canonical);
  args->serialized_topology_deleter = [](PJRT_SerializedTopology* topology) {
    delete reinterpret_cast<std::string*>(topology);
  };
  return nullptr;
}

}  // namespace

std::string Canonical(std::string message) { return CanonicalAt(message, 0); }

void MakeTopologyCanonical(PJRT_Api* api) {
  if (api->PJRT_TopologyDescription_Serialize == nullptr) return;
  plugin_serialize = api->PJRT_TopologyDescription_Serialize;
  api->PJRT_TopologyDescription_Serialize = Serialize;
}

}  // namespace torch_xla_ext::pjrt_shim
