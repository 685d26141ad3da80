// torch_xla and XLA for csrc/, as upstream's source declares them.
//
// csrc/ includes torch_xla_ext/csrc/upstream.h, which is this header in a build
// of upstream with patches/, and interpose/abi/upstream.h in a build of the
// wheel's library (//torch_xla_ext/csrc:upstream).
#ifndef TORCH_XLA_EXT_CSRC_UPSTREAM_H_
#define TORCH_XLA_EXT_CSRC_UPSTREAM_H_

#include "torch_xla/csrc/aten_xla_bridge.h"
#include "torch_xla/csrc/convert_ops.h"
#include "torch_xla/csrc/device.h"
#include "torch_xla/csrc/dl_convertor.h"
#include "torch_xla/csrc/helpers.h"
#include "torch_xla/csrc/ir.h"
#include "torch_xla/csrc/lowering_context.h"
#include "torch_xla/csrc/runtime/computation_client.h"
#include "torch_xla/csrc/runtime/runtime.h"
#include "torch_xla/csrc/shape_helper.h"
#include "torch_xla/csrc/tensor.h"
#include "torch_xla/csrc/tensor_methods.h"
#include "torch_xla/csrc/tensor_util.h"
#include "torch_xla/csrc/thread_pool.h"
#include "torch_xla/csrc/xla_graph_executor.h"
#include "xla/layout_util.h"
#include "xla/service/custom_call_status_internal.h"
#include "xla/service/custom_call_target_registry.h"
#include "xla/shape_util.h"

#endif  // TORCH_XLA_EXT_CSRC_UPSTREAM_H_
