// XlaGpuGroupedMatmul, XlaGpuGroupedLinear, XlaGpuGroupedLinearSum and
// XlaGpuGroupedOuter: one matrix product for each group of rows, as mixtures of
// experts need them.
//
// Group g has the rows [ranges[g][0], ranges[g][1]). With x_g and y_g for a
// group's rows of x and y:
//   XlaGpuGroupedMatmul: out_g = x_g * w[g]
//   XlaGpuGroupedLinear: out_g = x_g * transpose(w[g])
//   XlaGpuGroupedLinearSum: products_g = x_g * transpose(w[g]), and out[i] is
//     the sum of weights[i][j] * products[position[i][j]] over j
//   XlaGpuGroupedOuter: out[g] = transpose(x_g) * y_g
// Sums are in float. Products of rows of no group are zeros. Such rows take no
// part in XlaGpuGroupedOuter, where empty groups give zeros.
//
// Device data is not trusted. Ranges are clipped to [0, rows), and a range
// begins where the ranges before it end, at the earliest: a row that is in
// several groups is in the first of them, and a range that lies before the end
// of an earlier one is empty.
#ifndef KERNELS_GROUPED_MATMUL_GROUPED_MATMUL_H_
#define KERNELS_GROUPED_MATMUL_GROUPED_MATMUL_H_

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

}  // namespace torch_xla_ext::grouped_matmul

#endif  // KERNELS_GROUPED_MATMUL_GROUPED_MATMUL_H_
