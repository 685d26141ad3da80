// torch_xla 2.8.1 and XLA for calls/, as the stock binary holds them.
//
// calls/ includes them as torch_xla_ext/csrc/upstream.h: this header, or that
// of source/ with upstream's own (//torch_xla_ext/csrc:upstream).
#ifndef TORCH_XLA_EXT_CSRC_UPSTREAM_H_
#define TORCH_XLA_EXT_CSRC_UPSTREAM_H_

#include "torch_xla_ext/csrc/front/abi/custom_call_status.h"
#include "torch_xla_ext/csrc/front/abi/torch_xla.h"
#include "torch_xla_ext/csrc/front/abi/xla.h"
#include "xla/service/custom_call_target_registry.h"

#endif  // TORCH_XLA_EXT_CSRC_UPSTREAM_H_
