// XlaGpuSimpleAdd: the element-wise sum of two arrays.
//
//   operands  a, b: one dtype, one shape, row-major
//   result    out:  the same dtype and shape
//   payload   SimpleAddDescriptor
//
// An untyped custom call hands a kernel pointers and nothing else: what the
// kernel has to know of shape and dtype is in the payload.
#ifndef KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_
#define KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "xla/service/custom_call_status.h"

namespace torch_xla_ext {

// The numbers of xla::PrimitiveType.
enum class SimpleAddDType : uint8_t {
  kS32 = 4,
  kS64 = 5,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
};

// The payload, 16 bytes, little-endian. torch_xla_ext/ops/simple_add.py packs
// it.
struct SimpleAddDescriptor {
  // No JSON begins with this byte: XLA:GPU would read a payload in JSON as a
  // configuration of its own.
  static constexpr uint8_t kMagic = 0x01;
  static constexpr uint8_t kVersion = 1;
  // XLA's own limit is far above; a larger count is a broken payload.
  static constexpr int64_t kMaxCount = int64_t{1} << 40;

  uint8_t magic;
  uint8_t version;
  SimpleAddDType dtype;
  uint8_t reserved[5];  // zero
  int64_t count;        // elements of each array
};
static_assert(sizeof(SimpleAddDescriptor) == 16 &&
                  offsetof(SimpleAddDescriptor, count) == 8,
              "the payload's layout is documented and packed by Python");

// Reads the payload into `descriptor`. False, with the reason in `status`, if
// it is not a valid one.
inline bool ParseSimpleAddDescriptor(const char* opaque, size_t opaque_len,
                                     SimpleAddDescriptor* descriptor,
                                     XlaCustomCallStatus* status) {
  auto fail = [status](const std::string& reason) {
    const std::string text = "XlaGpuSimpleAdd: " + reason;
    XlaCustomCallStatusSetFailure(status, text.data(), text.size());
    return false;
  };
  if (opaque_len != sizeof(*descriptor)) {
    return fail("payload: expected " + std::to_string(sizeof(*descriptor)) +
                " bytes but got " + std::to_string(opaque_len));
  }
  std::memcpy(descriptor, opaque, sizeof(*descriptor));
  if (descriptor->magic != SimpleAddDescriptor::kMagic) {
    return fail("payload: expected the magic byte 1 but got " +
                std::to_string(descriptor->magic));
  }
  if (descriptor->version != SimpleAddDescriptor::kVersion) {
    return fail("payload: expected version 1 but got " +
                std::to_string(descriptor->version));
  }
  for (const uint8_t byte : descriptor->reserved) {
    if (byte != 0) return fail("payload: expected reserved bytes to be zero");
  }
  switch (descriptor->dtype) {
    case SimpleAddDType::kS32:
    case SimpleAddDType::kS64:
    case SimpleAddDType::kF16:
    case SimpleAddDType::kF32:
    case SimpleAddDType::kF64:
    case SimpleAddDType::kBF16:
      break;
    default:
      return fail(
          "payload: expected dtype F16 (10), BF16 (16), F32 (11), F64 (12), "
          "S32 (4) or S64 (5) but got " +
          std::to_string(static_cast<int>(descriptor->dtype)));
  }
  if (descriptor->count < 0 ||
      descriptor->count > SimpleAddDescriptor::kMaxCount) {
    return fail("payload: expected a count of 0 to 2^40 but got " +
                std::to_string(descriptor->count));
  }
  return true;
}

}  // namespace torch_xla_ext

#endif  // KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_
