// Reports programs that have already failed when their start returns.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_FAILED_START_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_FAILED_START_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// While one exists, starting a program in this thread returns an error if the
// program has failed by then, for example because a kernel refused its
// operands. Otherwise only the program's results have the error, which readers
// of their memory would not see.
class FailAtStart {
 public:
  FailAtStart();
  ~FailAtStart();
  FailAtStart(const FailAtStart&) = delete;
  FailAtStart& operator=(const FailAtStart&) = delete;
};

// Makes `api` return these errors.
void ReportFailedStarts(PJRT_Api* api);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_FAILED_START_H_
