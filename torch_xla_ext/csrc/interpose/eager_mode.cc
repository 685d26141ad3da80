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
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::ApplyEagerSync);
  upstream(this, tensors);
}

}  // namespace torch_xla
