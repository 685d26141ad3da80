// Sets for XLA tensors which operators compute in 16 bits under torch.autocast,
// and which in float32.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_AUTOCAST_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_AUTOCAST_H_

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace torch_xla_ext::aten_overrides {

// Uses PyTorch's lists for CUDA. torch_xla's own lists are for TPUs: there,
// layer_norm or sum of bfloat16 stays bfloat16, and relu of float32 becomes
// bfloat16.
inline void RegisterAutocast(torch::Library& m) {
  // Names that PyTorch's macros assume.
  using at::DimnameList, at::IntArrayRef, at::Scalar, at::ScalarType,
      at::Tensor;
#define TORCH_XLA_EXT_16_BITS(...) \
  KERNEL(c10::DeviceType::XLA, __VA_ARGS__, lower_precision_fp)
#define TORCH_XLA_EXT_FLOAT32(...) \
  KERNEL(c10::DeviceType::XLA, __VA_ARGS__, fp32)
#define TORCH_XLA_EXT_FLOAT32_OR_DTYPE(...) \
  KERNEL(c10::DeviceType::XLA, __VA_ARGS__, fp32_set_opt_dtype)
#define TORCH_XLA_EXT_OTHER_SIGNATURE(...) \
  KERNEL_DIFFERENT_REDISPATCH_SIGNATURE(c10::DeviceType::XLA, __VA_ARGS__)
#define TORCH_XLA_EXT_WIDEST(...) \
  KERNEL(c10::DeviceType::XLA, __VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TORCH_XLA_EXT_16_BITS)
  AT_FORALL_FP32(TORCH_XLA_EXT_FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCH_XLA_EXT_FLOAT32_OR_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(TORCH_XLA_EXT_OTHER_SIGNATURE)
  AT_FORALL_PROMOTE(TORCH_XLA_EXT_WIDEST)
#undef TORCH_XLA_EXT_16_BITS
#undef TORCH_XLA_EXT_FLOAT32
#undef TORCH_XLA_EXT_FLOAT32_OR_DTYPE
#undef TORCH_XLA_EXT_OTHER_SIGNATURE
#undef TORCH_XLA_EXT_WIDEST
  // Operators in torch_xla's lists, but not in PyTorch's.
  for (const char* const name :
       {"batch_norm", "max_pool2d", "reflection_pad1d", "reflection_pad2d",
        "relu", "replication_pad1d", "replication_pad2d",
        "replication_pad3d"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_AUTOCAST_H_
