// Orders work on a CUDA stream of PyTorch's and XLA's work on the same GPU, by
// events: neither side's host waits.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_CUDA_STREAMS_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_CUDA_STREAMS_H_

#include <cstdint>

namespace torch_xla_ext::graph {

// The FFI target whose call reports the stream on which XLA runs its programs.
// XLA has one such stream for a device, for its lifetime.
inline constexpr char kComputeStreamTarget[] = "XlaGpuComputeStream";

// Whether a call of that target has run. There has to be one before the
// functions below are called.
bool IsComputeStreamKnown();

// Makes XLA's future work start after the work that `stream`, a CUstream of
// PyTorch's, has been given so far. Throws std::runtime_error if a CUDA graph
// is being captured from the stream, or with the CUDA driver's name of an
// error.
void XlaWaitsFor(uintptr_t stream);

// The reverse: makes future work of `stream` start after the work that XLA has
// been given so far.
void WaitsForXla(uintptr_t stream);

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_CUDA_STREAMS_H_
