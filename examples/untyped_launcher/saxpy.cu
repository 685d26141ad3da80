// a * x + y, with the launcher of XLA's tutorials on GPU custom calls: it
// receives the stream, the buffers of operands and then results, and the
// payload.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

struct SaxpyArguments {  // as saxpy.py packs them
  int64_t size;
  float a;
};

__global__ void Saxpy(SaxpyArguments arguments, const float* x, const float* y,
                      float* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < arguments.size) out[i] = arguments.a * x[i] + y[i];
}

extern "C" void LegacySaxpy(cudaStream_t stream, void** buffers,
                            const char* opaque, size_t opaque_len) {
  const auto& arguments = *reinterpret_cast<const SaxpyArguments*>(opaque);
  const auto blocks = static_cast<unsigned>((arguments.size + 255) / 256);
  if (blocks == 0) return;
  Saxpy<<<blocks, 256, 0, stream>>>(
      arguments, static_cast<const float*>(buffers[0]),
      static_cast<const float*>(buffers[1]), static_cast<float*>(buffers[2]));
}
