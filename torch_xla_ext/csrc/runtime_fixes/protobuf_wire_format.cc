#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace torch_xla_ext {
namespace {

// Wire types.
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

uint64_t ReadVarint(std::string_view* text) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !text->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(text->front());
    text->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  throw std::runtime_error("an XLA program is not a protocol buffer");
}

std::string_view ReadBytes(std::string_view* text, size_t size) {
  if (size > text->size()) {
    throw std::runtime_error("an XLA program ends within a field");
  }
  const std::string_view bytes = text->substr(0, size);
  text->remove_prefix(size);
  return bytes;
}

void AppendVarint(uint64_t value, std::string* text) {
  for (; value >= 0x80; value >>= 7) {
    text->push_back(static_cast<char>(value | 0x80));
  }
  text->push_back(static_cast<char>(value));
}

}  // namespace

ProtobufMessage::ProtobufMessage(std::string_view serialized) {
  while (!serialized.empty()) {
    const uint64_t tag = ReadVarint(&serialized);
    Field field{static_cast<uint32_t>(tag >> 3), {}, {},
                static_cast<uint32_t>(tag & 7),  0,  false};
    switch (field.type) {
      case kVarint:
        field.value = ReadVarint(&serialized);
        break;
      case kFixed64:
        field.view = ReadBytes(&serialized, 8);
        break;
      case kBytes:
        field.view = ReadBytes(&serialized, ReadVarint(&serialized));
        break;
      case kFixed32:
        field.view = ReadBytes(&serialized, 4);
        break;
      default:
        throw std::runtime_error(
            "an XLA program has a field of the unknown wire type " +
            std::to_string(field.type));
    }
    fields_.push_back(std::move(field));
  }
}

ProtobufMessage::Field* ProtobufMessage::Find(uint32_t number) {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(),
                   [&](const Field& field) { return field.number == number; });
  return found == fields_.end() ? nullptr : &*found;
}

const ProtobufMessage::Field* ProtobufMessage::Find(uint32_t number) const {
  return const_cast<ProtobufMessage*>(this)->Find(number);
}

void ProtobufMessage::Erase(uint32_t number) {
  fields_.erase(std::remove_if(
                    fields_.begin(), fields_.end(),
                    [&](const Field& field) { return field.number == number; }),
                fields_.end());
}

bool ProtobufMessage::Has(uint32_t number) const {
  return Find(number) != nullptr;
}

uint64_t ProtobufMessage::Number(uint32_t number) const {
  const Field* const field = Find(number);
  return field == nullptr ? 0 : field->value;
}

std::string_view ProtobufMessage::Bytes(uint32_t number) const {
  const Field* const field = Find(number);
  return field == nullptr ? std::string_view() : field->bytes();
}

std::vector<std::string_view> ProtobufMessage::All(uint32_t number) const {
  std::vector<std::string_view> values;
  for (const Field& field : fields_) {
    if (field.number == number) values.push_back(field.bytes());
  }
  return values;
}

std::vector<uint64_t> ProtobufMessage::Numbers(uint32_t number) const {
  std::vector<uint64_t> values;
  for (const Field& field : fields_) {
    if (field.number != number) continue;
    if (field.type == kVarint) {
      values.push_back(field.value);
      continue;
    }
    std::string_view packed = field.bytes();
    while (!packed.empty()) values.push_back(ReadVarint(&packed));
  }
  return values;
}

void ProtobufMessage::SetNumber(uint32_t number, uint64_t value) {
  if (Field* const field = Find(number)) {
    field->value = value;
    return;
  }
  fields_.push_back({number, {}, {}, kVarint, value, false});
}

void ProtobufMessage::SetBytes(uint32_t number, std::string_view value) {
  Field own{number, {}, std::string(value), kBytes, 0, true};
  if (Field* const field = Find(number)) {
    *field = std::move(own);
    return;
  }
  fields_.push_back(std::move(own));
}

void ProtobufMessage::SetNumbers(uint32_t number,
                                 const std::vector<uint64_t>& values) {
  Erase(number);
  if (values.empty()) return;
  std::string packed;
  for (const uint64_t value : values) AppendVarint(value, &packed);
  SetBytes(number, packed);
}

void ProtobufMessage::Replace(uint32_t number,
                              const std::vector<std::string>& values) {
  Erase(number);
  for (const std::string& value : values) {
    fields_.push_back({number, {}, value, kBytes, 0, true});
  }
}

void ProtobufMessage::Transform(
    uint32_t number,
    const std::function<std::string(std::string_view)>& change) {
  for (Field& field : fields_) {
    if (field.number != number) continue;
    field.own = change(field.bytes());
    field.is_own = true;
  }
}

std::string ProtobufMessage::Serialize() const {
  std::string text;
  for (const Field& field : fields_) {
    AppendVarint(uint64_t{field.number} << 3 | field.type, &text);
    const std::string_view bytes = field.bytes();
    if (field.type == kVarint) {
      AppendVarint(field.value, &text);
      continue;
    }
    if (field.type == kBytes) AppendVarint(bytes.size(), &text);
    text.append(bytes);
  }
  return text;
}

}  // namespace torch_xla_ext
