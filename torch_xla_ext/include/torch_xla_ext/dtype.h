// Element types, with the numbers and names of xla::PrimitiveType, which are
// also those of XLA_FFI_DataType.
#ifndef TORCH_XLA_EXT_DTYPE_H_
#define TORCH_XLA_EXT_DTYPE_H_

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace torch_xla_ext {

enum class DType : uint8_t {
  kAbsent = 0,  // an optional operand that a call omits
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
  kF8E3M4 = 29,
  kF8E8M0FNU = 33,
  // A byte with two F4E2M1FN values, the first in its low bits, as
  // torch.float4_e2m1fn_x2. XLA has a type only for single values.
  kF4E2M1FNX2 = 200,
  // A byte with two 4-bit integers, the first in its low bits. XLA has a type
  // only for single values, and PyTorch has no operations for such integers.
  kS4X2 = 201,
  kU4X2 = 202,
};

inline constexpr DType PRED = DType::kPred;
inline constexpr DType S8 = DType::kS8;
inline constexpr DType S16 = DType::kS16;
inline constexpr DType S32 = DType::kS32;
inline constexpr DType S64 = DType::kS64;
inline constexpr DType U8 = DType::kU8;
inline constexpr DType U16 = DType::kU16;
inline constexpr DType U32 = DType::kU32;
inline constexpr DType U64 = DType::kU64;
inline constexpr DType F16 = DType::kF16;
inline constexpr DType F32 = DType::kF32;
inline constexpr DType F64 = DType::kF64;
inline constexpr DType C64 = DType::kC64;
inline constexpr DType BF16 = DType::kBF16;
inline constexpr DType C128 = DType::kC128;
inline constexpr DType F8E5M2 = DType::kF8E5M2;
inline constexpr DType F8E4M3FN = DType::kF8E4M3FN;
inline constexpr DType F8E3M4 = DType::kF8E3M4;
inline constexpr DType F8E8M0FNU = DType::kF8E8M0FNU;
inline constexpr DType F4E2M1FNX2 = DType::kF4E2M1FNX2;
inline constexpr DType S4X2 = DType::kS4X2;
inline constexpr DType U4X2 = DType::kU4X2;

// Whether torch_xla lacks tensors of this type, so that an array of U8 with the
// elements' bytes is accepted.
constexpr bool IsPassedAsBytes(DType dtype) {
  return dtype == F8E3M4 || dtype == F8E8M0FNU || dtype == F4E2M1FNX2 ||
         dtype == S4X2 || dtype == U4X2;
}

// A type's name, the size of one element, and the C++ type that holds one.
// Types that C++17 lacks are stored as their bits.
struct DTypeInfo {
  DType dtype;
  std::string_view name;
  size_t byte_width;
};

inline constexpr DTypeInfo kDTypes[] = {
    {DType::kPred, "PRED", 1},
    {DType::kS8, "S8", 1},
    {DType::kS16, "S16", 2},
    {DType::kS32, "S32", 4},
    {DType::kS64, "S64", 8},
    {DType::kU8, "U8", 1},
    {DType::kU16, "U16", 2},
    {DType::kU32, "U32", 4},
    {DType::kU64, "U64", 8},
    {DType::kF16, "F16", 2},
    {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},
    {DType::kC64, "C64", 8},
    {DType::kBF16, "BF16", 2},
    {DType::kC128, "C128", 16},
    {DType::kF8E5M2, "F8E5M2", 1},
    {DType::kF8E4M3FN, "F8E4M3FN", 1},
    {DType::kF8E3M4, "F8E3M4", 1},
    {DType::kF8E8M0FNU, "F8E8M0FNU", 1},
    {DType::kF4E2M1FNX2, "F4E2M1FNX2", 1},
    {DType::kS4X2, "S4X2", 1},
    {DType::kU4X2, "U4X2", 1},
};

// A type's index in kDTypes by its name, or -1. (Comparing an address with null
// is no constant expression to GCC when it compiles with sanitizers.)
constexpr int DTypeIndex(std::string_view name) {
  int index = 0;
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return index;
    ++index;
  }
  return -1;
}

// Null if no type has this number.
inline const DTypeInfo* FindDType(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return &info;
  }
  return nullptr;
}

namespace internal {

// A value of the C++ type that holds an element.
template <DType dtype>
constexpr auto NativeValue() {
  if constexpr (dtype == PRED) {
    return bool();
  } else if constexpr (dtype == S8) {
    return int8_t();
  } else if constexpr (dtype == S16) {
    return int16_t();
  } else if constexpr (dtype == S32) {
    return int32_t();
  } else if constexpr (dtype == S64) {
    return int64_t();
  } else if constexpr (dtype == U8 || dtype == F8E5M2 || dtype == F8E4M3FN ||
                       IsPassedAsBytes(dtype)) {
    return uint8_t();
  } else if constexpr (dtype == U16 || dtype == F16 || dtype == BF16) {
    return uint16_t();
  } else if constexpr (dtype == U32) {
    return uint32_t();
  } else if constexpr (dtype == U64) {
    return uint64_t();
  } else if constexpr (dtype == F32) {
    return float();
  } else if constexpr (dtype == F64) {
    return double();
  } else if constexpr (dtype == C64) {
    return std::complex<float>();
  } else {
    static_assert(dtype == C128, "not the dtype of an array");
    return std::complex<double>();
  }
}

}  // namespace internal

template <DType dtype>
using NativeType = decltype(internal::NativeValue<dtype>());

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_DTYPE_H_
