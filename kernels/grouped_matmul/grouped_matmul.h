// XlaGpuGroupedMatmul, XlaGpuGroupedLinear, XlaGpuGroupedLinearSum,
// XlaGpuGroupedOuter, XlaGpuScaledGroupedLinear, XlaGpuScaledGroupedLinearSum,
// XlaGpuMxGroupedLinear and XlaGpuMxGroupedLinearSum: one matrix product for
// each group of rows, as MoE layers need them.
//
// Group g has the rows [ranges[g][0], ranges[g][1]). With x_g and y_g for a
// group's rows of x and y:
//   XlaGpuGroupedMatmul: out_g = x_g * w[g]
//   XlaGpuGroupedLinear: out_g = x_g * transpose(w[g])
//   XlaGpuGroupedLinearSum: products_g = x_g * transpose(w[g]), and out[i] is
//     the sum of weights[i][j] * products[position[i][j]] over j
//   XlaGpuGroupedOuter: out[g] = transpose(x_g) * y_g
// The operands of XlaGpuScaledGroupedLinear and XlaGpuScaledGroupedLinearSum
// have scales, by which their elements are multiplied. Along k, there is one
// scale per block of 128 elements, or one in all. Along n, there is one per
// block of 128, one per column, or one in all: n_scales is n / 128 rounded up,
// n or 1. `like` has the dtype of the results. In XlaGpuMxGroupedLinear and
// XlaGpuMxGroupedLinearSum, w is in MXFP4. Sums are in float. Products of rows
// of no group are zeros. XlaGpuGroupedOuter ignores such rows, and returns
// zeros for empty groups.
//
// Device data is not trusted. Ranges are clipped to [0, rows), and no range
// begins before all earlier ranges have ended: a row in several ranges belongs
// to the first of them, and a range that lies before the end of an earlier one
// is empty.
#ifndef KERNELS_GROUPED_MATMUL_GROUPED_MATMUL_H_
#define KERNELS_GROUPED_MATMUL_GROUPED_MATMUL_H_

#include "kernels/grouped_matmul/scales.h"
#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::grouped_matmul {

inline constexpr Signature kGroupedMatmul = ParseSignature(
    "XlaGpuGroupedMatmul(x: T[rows, k], w: T[groups, k, n], "
    "ranges: S32[groups, 2]) -> (out: T[rows, n]) where T: F16 | BF16 | F32, "
    "groups: 1..1024");

inline constexpr Signature kGroupedLinear = ParseSignature(
    "XlaGpuGroupedLinear(x: T[rows, k], w: T[groups, n, k], "
    "ranges: S32[groups, 2]) -> (out: T[rows, n]) where T: F16 | BF16 | F32, "
    "groups: 1..1024");

inline constexpr Signature kGroupedLinearSum = ParseSignature(
    "XlaGpuGroupedLinearSum(x: T[rows, k], w: T[groups, n, k], "
    "ranges: S32[groups, 2], position: S32[sums, terms], "
    "weights: F32[sums, terms]) -> (out: T[sums, n], products: T[rows, n]) "
    "where T: F16 | BF16 | F32, groups: 1..1024");

inline constexpr Signature kGroupedOuter = ParseSignature(
    "XlaGpuGroupedOuter(x: T[rows, m], y: T[rows, n], "
    "ranges: S32[groups, 2]) -> (out: T[groups, m, n]) where T: F16 | BF16 | "
    "F32, groups: 1..1024");

inline constexpr Signature kScaledGroupedLinear = ParseSignature(
    "XlaGpuScaledGroupedLinear(x: F8E4M3FN[rows, k], "
    "w: F8E4M3FN[groups, n, k], x_scale: F32[rows, k_scales], "
    "w_scale: F32[groups, n_scales, k_scales], ranges: S32[groups, 2], "
    "like: T[0]) -> (out: T[rows, n]) where T: F16 | BF16 | F32, "
    "groups: 1..1024");

inline constexpr Signature kScaledGroupedLinearSum = ParseSignature(
    "XlaGpuScaledGroupedLinearSum(x: F8E4M3FN[rows, k], "
    "w: F8E4M3FN[groups, n, k], x_scale: F32[rows, k_scales], "
    "w_scale: F32[groups, n_scales, k_scales], ranges: S32[groups, 2], "
    "position: S32[sums, terms], weights: F32[sums, terms], like: T[0]) -> "
    "(out: T[sums, n], products: T[rows, n]) where T: F16 | BF16 | F32, "
    "groups: 1..1024");

inline constexpr Signature kMxGroupedLinear = ParseSignature(
    "XlaGpuMxGroupedLinear(x: T[rows, 32 * blocks], "
    "w: F4E2M1FNX2[groups, n, 16 * blocks], "
    "w_scale: F8E8M0FNU[groups, n, blocks], ranges: S32[groups, 2]) -> "
    "(out: T[rows, n]) where T: F16 | BF16 | F32, groups: 1..1024");

inline constexpr Signature kMxGroupedLinearSum = ParseSignature(
    "XlaGpuMxGroupedLinearSum(x: T[rows, 32 * blocks], "
    "w: F4E2M1FNX2[groups, n, 16 * blocks], "
    "w_scale: F8E8M0FNU[groups, n, blocks], ranges: S32[groups, 2], "
    "position: S32[sums, terms], weights: F32[sums, terms]) -> "
    "(out: T[sums, n], products: T[rows, n]) where T: F16 | BF16 | F32, "
    "groups: 1..1024");

// Checks the sizes of scales that the signatures leave open.
inline Status CheckScales(int64_t n, int64_t k, Buffer<F32, 3> w_scale) {
  const auto blocks = [](int64_t size) {
    return (size + kScaleBlock - 1) / kScaleBlock;
  };
  const int64_t n_scales = w_scale.dim(1), k_scales = w_scale.dim(2);
  if ((n_scales == 1 || n_scales == n || n_scales == blocks(n)) &&
      (k_scales == 1 || k_scales == blocks(k))) {
    return Status::Ok();
  }
  return Status::Error(
      "operand 3 (w_scale): expected dimensions 1 and 2 to be ", "1, ",
      blocks(n), " or ", n, ", and 1 or ", blocks(k), ", but got ", n_scales,
      " and ", k_scales);
}

}  // namespace torch_xla_ext::grouped_matmul

#endif  // KERNELS_GROUPED_MATMUL_GROUPED_MATMUL_H_
