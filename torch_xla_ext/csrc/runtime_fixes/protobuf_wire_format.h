// Reads and writes one level of a protocol buffer in wire format, for XLA's
// messages, whose classes are not declared in the wheel's build.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROTOBUF_WIRE_FORMAT_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROTOBUF_WIRE_FORMAT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla_ext {

// Keeps the order of its fields, including unread ones.
class ProtobufMessage {
 public:
  ProtobufMessage() = default;
  // Views into `serialized` stay valid as long as it does. Throws
  // std::runtime_error if it is not a message.
  explicit ProtobufMessage(std::string_view serialized);

  bool Has(uint32_t number) const;
  // A field's value; 0 or empty without the field.
  uint64_t Number(uint32_t number) const;
  std::string_view Bytes(uint32_t number) const;
  // The values of a repeated field.
  std::vector<std::string_view> All(uint32_t number) const;
  std::vector<uint64_t> Numbers(uint32_t number) const;

  void SetNumber(uint32_t number, uint64_t value);
  void SetBytes(uint32_t number, std::string_view value);
  void SetNumbers(uint32_t number, const std::vector<uint64_t>& values);
  void Replace(uint32_t number, const std::vector<std::string>& values);
  // Replaces each value of a bytes field.
  void Transform(uint32_t number,
                 const std::function<std::string(std::string_view)>& change);

  std::string Serialize() const;

 private:
  struct Field {
    uint32_t number;
    std::string_view view;  // of what was parsed: the value's wire format
    std::string own;        // what was set, if `is_own`
    uint32_t type;
    uint64_t value;
    bool is_own;
    std::string_view bytes() const { return is_own ? own : view; }
  };

  Field* Find(uint32_t number);
  const Field* Find(uint32_t number) const;
  void Erase(uint32_t number);

  std::vector<Field> fields_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROTOBUF_WIRE_FORMAT_H_
