// Programs that have failed when they are started.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_FAILED_START_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_FAILED_START_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// While one exists, a program that this thread starts and that has failed
// already, because a kernel refused its operands, say, is an error of its
// start. Otherwise the error is that of the program's results, which tells
// nothing to a reader of their memory.
class FailAtStart {
 public:
  FailAtStart();
  ~FailAtStart();
  FailAtStart(const FailAtStart&) = delete;
  FailAtStart& operator=(const FailAtStart&) = delete;
};

// Changes `api` so that it does this.
void ReportFailedStarts(PJRT_Api* api);

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_FAILED_START_H_
