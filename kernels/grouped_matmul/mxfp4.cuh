// Converts MXFP4 to bfloat16, a part of grouped_matmul_sm90.cu.
#ifndef KERNELS_GROUPED_MATMUL_MXFP4_CUH_
#define KERNELS_GROUPED_MATMUL_MXFP4_CUH_

#include <cstdint>

namespace torch_xla_ext::grouped_matmul {

// Converts 32 elements of a row of w from MXFP4 to bfloat16, and stores them,
// swizzled, in the row's first or second half.
__device__ inline void Convert(const uint4& packed, int exponent, int half,
                               int row, uint8_t* row_data) {
  // An element's bits, shifted into a bfloat16, represent its value times
  // 2^-126. The scale is 2^(exponent - 127); a large scale needs a second
  // factor.
  const auto word = [](int bits) {
    return static_cast<uint32_t>(bits) * 0x10001;
  };
  const auto multiply = [](uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
  };
  const uint32_t factor = word((min(exponent, 128) + 126) << 7);
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t pairs[4];  // elements j and j + 4
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t w = words[i];
      const uint32_t moved = j < 2 ? w << (6 - 4 * j) : w >> (4 * j - 6);
      pairs[j] = multiply(
          (w << (12 - 4 * j) & 0x80008000u) | (moved & 0x01c001c0u), factor);
      if (exponent > 128) {
        pairs[j] = multiply(
            pairs[j], word(exponent == 255 ? 0x7fc0 : (exponent - 1) << 7));
      }
    }
    *reinterpret_cast<uint4*>(row_data + ((half * 4 + i) ^ row % 8) * 16) =
        make_uint4(__byte_perm(pairs[0], pairs[1], 0x5410),
                   __byte_perm(pairs[2], pairs[3], 0x5410),
                   __byte_perm(pairs[0], pairs[1], 0x7632),
                   __byte_perm(pairs[2], pairs[3], 0x7632));
  }
}

}  // namespace torch_xla_ext::grouped_matmul

#endif  // KERNELS_GROUPED_MATMUL_MXFP4_CUH_
