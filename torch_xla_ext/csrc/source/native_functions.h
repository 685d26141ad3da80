// torch_xla's kernels for aten_overrides/, as upstream's source declares them.
#ifndef TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_
#define TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_

#include "torch_xla/csrc/XLANativeFunctions.h"
#include "torch_xla/csrc/aten_fallback.h"
#include "torch_xla/csrc/xla_backend_impl.h"

#endif  // TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_
