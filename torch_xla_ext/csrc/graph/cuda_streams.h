// Orders work on one of PyTorch's CUDA streams and XLA's work on the same GPU
// by events, so that the host waits for neither.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_CUDA_STREAMS_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_CUDA_STREAMS_H_

#include <cstdint>

namespace torch_xla_ext::graph {

// The FFI target whose call reports the stream on which XLA runs its programs.
// XLA has one such stream per device, which never changes.
inline constexpr char kComputeStreamTarget[] = "XlaGpuComputeStream";

// Whether a call of that target has run, as the functions below require.
bool IsComputeStreamKnown();

// Makes XLA's future work start after the work that is already in `stream`, one
// of PyTorch's CUstreams. Throws std::runtime_error if a CUDA graph is being
// captured from the stream, or with the name of an error of the CUDA driver.
void XlaWaitsFor(uintptr_t stream);

// The reverse: makes future work in `stream` start after XLA's work so far.
void WaitsForXla(uintptr_t stream);

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_CUDA_STREAMS_H_
