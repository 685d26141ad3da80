// The blocks of XlaGpuScaledGroupedLinear's scales.
#ifndef KERNELS_GROUPED_MATMUL_SCALES_H_
#define KERNELS_GROUPED_MATMUL_SCALES_H_

namespace torch_xla_ext::grouped_matmul {

inline constexpr int kScaleBlock = 128;  // elements with a scale in common

}  // namespace torch_xla_ext::grouped_matmul

#endif  // KERNELS_GROUPED_MATMUL_SCALES_H_
