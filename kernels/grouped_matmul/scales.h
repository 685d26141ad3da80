// The blocks of XlaGpuScaledGroupedLinear's and XlaGpuMxGroupedLinear's scales.
#ifndef KERNELS_GROUPED_MATMUL_SCALES_H_
#define KERNELS_GROUPED_MATMUL_SCALES_H_

namespace torch_xla_ext::grouped_matmul {

// The number of elements that share a scale.
inline constexpr int kScaleBlock = 128;
inline constexpr int kMxBlock = 32;

}  // namespace torch_xla_ext::grouped_matmul

#endif  // KERNELS_GROUPED_MATMUL_SCALES_H_
