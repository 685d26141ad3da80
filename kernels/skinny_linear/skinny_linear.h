// XlaGpuSkinnyLinear and XlaGpuSkinnySwiglu: products of at most 16 rows with a
// matrix of weights, as decode steps need them.
//
//   XlaGpuSkinnyLinear: out = x * transpose(w)
//   XlaGpuSkinnySwiglu: of each group g, gate = x * transpose(w[g][0]),
//     up = x * transpose(w[g][1]), and out[:, g] = gate / (1 + exp(-gate)) * up
//
// All is computed in float; results are rounded once.
#ifndef KERNELS_SKINNY_LINEAR_SKINNY_LINEAR_H_
#define KERNELS_SKINNY_LINEAR_SKINNY_LINEAR_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::skinny_linear {

inline constexpr Signature kSkinnyLinear = ParseSignature(
    "XlaGpuSkinnyLinear(x: T[rows, 8 * blocks], w: T[n, 8 * blocks]) -> "
    "(out: T[rows, n]) where T: F16 | BF16, rows: 1..16");

inline constexpr Signature kSkinnySwiglu = ParseSignature(
    "XlaGpuSkinnySwiglu(x: T[rows, 8 * blocks], "
    "w: T[groups, 2, n, 8 * blocks]) -> (out: T[rows, groups, n]) "
    "where T: F16 | BF16, rows: 1..16");

}  // namespace torch_xla_ext::skinny_linear

#endif  // KERNELS_SKINNY_LINEAR_SKINNY_LINEAR_H_
