// The 16-bit floats that C++ lacks, for Host code. This header needs no other
// header.
//
//   const BFloat16* x = buffer.data<BFloat16>();
//   y[i] = BFloat16(2.0f * static_cast<float>(x[i]));
#ifndef TORCH_XLA_EXT_FLOATS_H_
#define TORCH_XLA_EXT_FLOATS_H_

#include <cstdint>
#include <cstring>

namespace [[gnu::visibility("hidden")]] torch_xla_ext {
namespace internal {

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace internal

// BF16: the upper half of a float. Conversion from float rounds to nearest,
// ties to even; a NaN becomes 0x7FC0.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t from = internal::BitsOf(value);
    const uint32_t rounded = from + 0x7FFF + (from >> 16 & 1);
    bits = value != value ? 0x7FC0 : static_cast<uint16_t>(rounded >> 16);
  }
  operator float() const {
    return internal::FloatOf(static_cast<uint32_t>(bits) << 16);
  }
};

// F16, of IEEE 754: 5 bits of exponent and 10 of mantissa. Conversion from
// float rounds to nearest, ties to even; beyond 65504, to infinity. A NaN
// becomes 0x7E00 with its sign.
struct Half {
  uint16_t bits;

  Half() = default;
  explicit Half(float value) {
    const uint32_t from = internal::BitsOf(value);
    const uint32_t sign = from >> 16 & 0x8000;
    const uint32_t magnitude = from & 0x7FFFFFFF;
    uint32_t to;
    if (magnitude > 0x7F800000) {
      to = 0x7E00;
    } else if (magnitude >= 0x477FF000) {  // 65520
      to = 0x7C00;
    } else if (magnitude < 0x38800000) {  // 2^-14
      // In [0.5, 1), a float's last bit is 2^-24, as a subnormal Half's.
      to = internal::BitsOf(internal::FloatOf(magnitude) + 0.5f) - 0x3F000000;
    } else {
      to = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    }
    bits = static_cast<uint16_t>(sign | to);
  }
  operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t magnitude = bits & 0x7FFF;
    uint32_t to;
    if (magnitude >= 0x7C00) {
      to = 0x7F800000 | (magnitude & 0x3FF) << 13;
    } else if (magnitude >= 0x400) {
      to = (magnitude << 13) + 0x38000000;
    } else {
      to = internal::BitsOf(static_cast<float>(magnitude) * 0x1p-24f);
    }
    return internal::FloatOf(sign | to);
  }
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_FLOATS_H_
