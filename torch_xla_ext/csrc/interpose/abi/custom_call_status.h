// XLA's XlaCustomCallStatus, through which a kernel reports a failure. The type
// is opaque to kernels, but the caller of a kernel must construct one.
//
// Mirrors xla/service/custom_call_status_internal.h at commit 9084478f. The
// upstream binary's XlaCustomCallStatusSetFailure assigns to the member: both
// sides use libstdc++'s std::optional and std::string with the same C++11 ABI.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_CUSTOM_CALL_STATUS_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_CUSTOM_CALL_STATUS_H_

#include <optional>
#include <string>

#include "torch_xla_ext/csrc/interpose/abi/layout.h"
#include "xla/service/custom_call_status.h"

struct XlaCustomCallStatus_ {
  // Empty if the call succeeded.
  std::optional<std::string> message;
};
static_assert(sizeof(XlaCustomCallStatus_) ==
              torch_xla_ext::layout::kCustomCallStatusSize);

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_CUSTOM_CALL_STATUS_H_
