// XlaGpuCopyOutsideGraphs: a copy that XLA:GPU never captures into a CUDA
// graph.
#ifndef KERNELS_COPY_OUTSIDE_GRAPHS_COPY_OUTSIDE_GRAPHS_H_
#define KERNELS_COPY_OUTSIDE_GRAPHS_COPY_OUTSIDE_GRAPHS_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::copy_outside_graphs {

inline constexpr Signature kCopyOutsideGraphs = ParseSignature(
    "XlaGpuCopyOutsideGraphs(x: T[*shape]) -> (out: T[*shape]) "
    "where T: F16 | BF16 | F32 | F64 | S32 | S64");

}  // namespace torch_xla_ext::copy_outside_graphs

#endif  // KERNELS_COPY_OUTSIDE_GRAPHS_COPY_OUTSIDE_GRAPHS_H_
