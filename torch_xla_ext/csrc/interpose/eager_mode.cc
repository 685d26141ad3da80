// Interposes on XLAGraphExecutor::ApplyEagerSync: in eager mode, a kernel that
// is made of several operators runs as one program.
//
// This works because the upstream binary calls it through its PLT.
#include "torch_xla_ext/csrc/runtime_fixes/eager_mode.h"

#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace torch_xla {

void XLAGraphExecutor::ApplyEagerSync(std::vector<XLATensorPtr>& tensors) {
  if (torch_xla_ext::DelayedExecution::IsOn()) return;
  using Function = void(XLAGraphExecutor*, std::vector<XLATensorPtr>&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor14ApplyEagerSyncERSt6vectorIN3c1013"
      "intrusive_ptrINS_9XLATensorENS2_6detail34intrusive_target_default_null_"
      "typeIS4_EEEESaIS8_EE");
  upstream(this, tensors);
}

}  // namespace torch_xla
