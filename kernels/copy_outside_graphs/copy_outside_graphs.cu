// XlaGpuCopyOutsideGraphs for CUDA. Deliberately not kCommandBufferCompatible.
#include <cuda_runtime.h>

#include "kernels/copy_outside_graphs/copy_outside_graphs.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::copy_outside_graphs {
namespace {

Status LaunchCopy(cudaStream_t stream, AnyBuffer x, AnyResult out) {
  if (x.size() == 0) return Status::Ok();
  return CudaStatus(cudaMemcpyAsync(out.untyped_data(), x.untyped_data(),
                                    x.size_bytes(), cudaMemcpyDeviceToDevice,
                                    stream));
}

}  // namespace
}  // namespace torch_xla_ext::copy_outside_graphs

XLA_KERNEL_CUDA(XlaGpuCopyOutsideGraphs,
                torch_xla_ext::copy_outside_graphs::kCopyOutsideGraphs,
                torch_xla_ext::copy_outside_graphs::LaunchCopy);
