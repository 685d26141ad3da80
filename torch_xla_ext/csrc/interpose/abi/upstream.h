// torch_xla 2.8.1 and XLA for csrc/, as compiled into the upstream binary.
//
// csrc/ includes torch_xla_ext/csrc/upstream.h, which is either this header or
// the one in source/, with upstream's own headers
// (//torch_xla_ext/csrc:upstream).
#ifndef TORCH_XLA_EXT_CSRC_UPSTREAM_H_
#define TORCH_XLA_EXT_CSRC_UPSTREAM_H_

#include "torch_xla_ext/csrc/interpose/abi/custom_call_status.h"
#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/abi/xla.h"
#include "xla/service/custom_call_target_registry.h"

#endif  // TORCH_XLA_EXT_CSRC_UPSTREAM_H_
