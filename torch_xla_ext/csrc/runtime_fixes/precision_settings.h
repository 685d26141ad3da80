// Which precision the settings of torch_xla and PyTorch ask for.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_SETTINGS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_SETTINGS_H_

#include "torch_xla_ext/csrc/runtime_fixes/precision.h"

namespace torch_xla_ext {

// That of torch_xla.backends.set_mat_mul_precision, unless it is "default".
// Then, as on CUDA, products of float32 have full precision unless
// torch.set_float32_matmul_precision or torch.backends.cuda.matmul.allow_tf32
// says otherwise, and convolutions if torch.backends.cudnn.allow_tf32 is off.
Precisions PrecisionSettings();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PRECISION_SETTINGS_H_
