// XLA's XlaCustomCallStatus, with which a kernel reports a failure. XLA shows
// kernels an opaque type; whoever calls one has to make it.
//
// As xla/service/custom_call_status_internal.h at commit 9084478f. The stock
// binary's XlaCustomCallStatusSetFailure assigns to the member: std::optional
// and std::string are libstdc++'s of the same C++11 ABI on both sides.
#ifndef TORCH_XLA_EXT_CSRC_FRONT_ABI_CUSTOM_CALL_STATUS_H_
#define TORCH_XLA_EXT_CSRC_FRONT_ABI_CUSTOM_CALL_STATUS_H_

#include <optional>
#include <string>

#include "torch_xla_ext/csrc/front/abi/layout.h"
#include "xla/service/custom_call_status.h"

struct XlaCustomCallStatus_ {
  // Without one, the call succeeded.
  std::optional<std::string> message;
};
static_assert(sizeof(XlaCustomCallStatus_) ==
              torch_xla_ext::layout::kCustomCallStatusSize);

#endif  // TORCH_XLA_EXT_CSRC_FRONT_ABI_CUSTOM_CALL_STATUS_H_
