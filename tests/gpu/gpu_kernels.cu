// Kernels that the GPU tests register from Python. The first five are the CUDA
// counterparts of those in tests/csrc/host_kernels.cc, so that the tests in
// tests/csrc also run on a GPU. They use the untyped ABI: `buffers` has the
// operands, then the results.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"
#include "xla/service/custom_call_status.h"

namespace {

// Bytes that are passed to a kernel by value.
struct Bytes {
  int64_t size;
  unsigned char values[1000];
};

__global__ void WriteBytes(Bytes bytes, int64_t limit, int64_t* out) {
  if (threadIdx.x == 0) out[0] = bytes.size;
  for (int64_t i = threadIdx.x; i < bytes.size && i < limit; i += blockDim.x) {
    out[i + 1] = bytes.values[i];
  }
}

__global__ void WriteNumber(int64_t number, int64_t* out) { out[0] = number; }

__global__ void Copy(const float* in, int64_t count, float* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i];
}

__global__ void SumDifferenceRound(const float* a, const float* b,
                                   int64_t count, float* sum, float* difference,
                                   int32_t* rounded) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  sum[i] = a[i] + b[i];
  difference[i] = a[i] - b[i];
  rounded[i] = static_cast<int32_t>(a[i]);
}

__global__ void AddScaled(const float* a, const float* b, int64_t count,
                          int64_t scale, float* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = a[i] + scale * b[i];
}

constexpr int kThreads = 256;
unsigned Blocks(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

int64_t ReadCount(const char* opaque) {
  int64_t count;
  std::memcpy(&count, opaque, sizeof(count));
  return count;
}

void Fail(XlaCustomCallStatus* status, const char* text) {
  XlaCustomCallStatusSetFailure(status, text, std::strlen(text));
}

void CheckLaunch(XlaCustomCallStatus* status) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) Fail(status, cudaGetErrorString(error));
}

void Echo(cudaStream_t stream, void* out, int64_t limit, const char* opaque,
          size_t opaque_len, XlaCustomCallStatus* status) {
  Bytes bytes = {};
  bytes.size = static_cast<int64_t>(opaque_len);
  if (opaque_len > sizeof(bytes.values)) {
    return Fail(status, "the payload is too long to be shown");
  }
  std::memcpy(bytes.values, opaque, opaque_len);
  WriteBytes<<<1, kThreads, 0, stream>>>(bytes, limit,
                                         static_cast<int64_t*>(out));
  CheckLaunch(status);
}

}  // namespace

#define KERNEL(name)                                           \
  extern "C" __attribute__((visibility("default"))) void name( \
      cudaStream_t stream, void** buffers, const char* opaque, \
      size_t opaque_len, XlaCustomCallStatus* status)

// Result s64[16]: the length of the payload and its first 15 bytes.
KERNEL(TestEcho) { Echo(stream, buffers[1], 15, opaque, opaque_len, status); }
KERNEL(TestEchoSingle) {
  Echo(stream, buffers[1], 15, opaque, opaque_len, status);
}

// Result s64[1001]: the length of the payload and its first 1000 bytes.
KERNEL(TestEchoLong) {
  Echo(stream, buffers[1], 1000, opaque, opaque_len, status);
}

// Copies f32 operand 0 in buffer order. Payload: the count, i64.
KERNEL(TestCopy) {
  const int64_t count = ReadCount(opaque);
  if (count == 0) return;
  Copy<<<Blocks(count), kThreads, 0, stream>>>(
      static_cast<const float*>(buffers[0]), count,
      static_cast<float*>(buffers[1]));
  CheckLaunch(status);
}

KERNEL(TestSumDifferenceRound) {
  const int64_t count = ReadCount(opaque);
  SumDifferenceRound<<<Blocks(count), kThreads, 0, stream>>>(
      static_cast<const float*>(buffers[0]),
      static_cast<const float*>(buffers[1]), count,
      static_cast<float*>(buffers[2]), static_cast<float*>(buffers[3]),
      static_cast<int32_t*>(buffers[4]));
  CheckLaunch(status);
}

// Counts its calls; the result, s64[1], is the count.
KERNEL(TestCount) {
  static std::atomic<int64_t> calls{0};
  WriteNumber<<<1, 1, 0, stream>>>(++calls, static_cast<int64_t*>(buffers[1]));
  CheckLaunch(status);
}

KERNEL(TestFail) {
  Fail(status, "TestFail: operand 1 (b): expected 3 elements");
}

// A launch that CUDA rejects: more threads than a block can have.
KERNEL(TestBadLaunch) {
  Copy<<<1, 100000, 0, stream>>>(nullptr, 0, nullptr);
  CheckLaunch(status);
}

// Copies operand 0 with cudaMemcpyAsync: the upper limit for a bandwidth-bound
// kernel. Payload: the number of bytes, i64.
KERNEL(TestMemcpy) {
  const cudaError_t error =
      cudaMemcpyAsync(buffers[1], buffers[0], ReadCount(opaque),
                      cudaMemcpyDeviceToDevice, stream);
  if (error != cudaSuccess) Fail(status, cudaGetErrorString(error));
}

// Does nothing, for measurements of the host's time.
KERNEL(TestNothing) {}

// An FFI handler: out = a + scale * b.
static xla::ffi::Error FfiAddScaled(cudaStream_t stream,
                                    xla::ffi::Buffer<xla::ffi::F32> a,
                                    xla::ffi::Buffer<xla::ffi::F32> b,
                                    xla::ffi::ResultBuffer<xla::ffi::F32> out,
                                    int64_t scale) {
  const int64_t count = a.element_count();
  if (static_cast<int64_t>(b.element_count()) != count) {
    return xla::ffi::Error::InvalidArgument("TestFfiAddScaled: sizes differ");
  }
  AddScaled<<<Blocks(count), kThreads, 0, stream>>>(
      a.typed_data(), b.typed_data(), count, scale, out->typed_data());
  return cudaGetLastError() == cudaSuccess
             ? xla::ffi::Error::Success()
             : xla::ffi::Error::Internal("TestFfiAddScaled: launch failed");
}

extern "C" __attribute__((visibility("default"))) XLA_FFI_Error*
TestFfiAddScaled(XLA_FFI_CallFrame* call_frame) {
  static auto* handler = xla::ffi::Ffi::Bind()
                             .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                             .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                             .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                             .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                             .Attr<int64_t>("scale")
                             .To(FfiAddScaled)
                             .release();
  return handler->Call(call_frame);
}
