// XlaGpuCopyOutsideGraphs for the CPU, which has no graphs.
#include <cstring>

#include "kernels/copy_outside_graphs/copy_outside_graphs.h"

namespace torch_xla_ext::copy_outside_graphs {
namespace {

Status CopyOnHost(AnyBuffer x, AnyResult out) {
  if (x.size() > 0) {
    std::memcpy(out.untyped_data(), x.untyped_data(), x.size_bytes());
  }
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::copy_outside_graphs

XLA_KERNEL_HOST(XlaGpuCopyOutsideGraphs,
                torch_xla_ext::copy_outside_graphs::kCopyOutsideGraphs,
                torch_xla_ext::copy_outside_graphs::CopyOnHost);
