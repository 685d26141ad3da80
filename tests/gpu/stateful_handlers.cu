// FFI handlers with several stages for tests/gpu/stages_test.py: the CUDA
// counterpart of tests/csrc/registry/stateful_handlers.cc.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using FloatResult = ffi::Result<Floats>;

__global__ void ScaleAndAdd(const float* in, int64_t count, float scale,
                            float offset, float* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = scale * in[i] + offset;
}

ffi::Error Launch(cudaStream_t stream, Floats x, FloatResult out, double scale,
                  int64_t offset) {
  const int64_t count = x.element_count();
  if (count > 0) {
    ScaleAndAdd<<<(count + 255) / 256, 256, 0, stream>>>(
        x.typed_data(), count, scale, offset, out->typed_data());
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? ffi::Error::Success()
                              : ffi::Error::Internal(cudaGetErrorString(error));
}

// How often each stage has been called; CountGpuCalls returns it. XLA compiles
// and runs in threads.
enum Count {
  kInstantiated,
  kPrepared,
  kInitialized,
  kExecuted,
  kDestroyed,
  kNumCounts
};
std::atomic<int64_t> counts[kNumCounts] = {};

struct GpuPlan {
  static ffi::TypeId id;

  explicit GpuPlan(double scale) : scale(scale) { ++counts[kInstantiated]; }
  ~GpuPlan() { ++counts[kDestroyed]; }

  double scale;
  bool prepared = false;
  bool initialized = false;
  int64_t executions = 0;
};
ffi::TypeId GpuPlan::id = {};

ffi::ErrorOr<std::unique_ptr<GpuPlan>> Instantiate(double scale) {
  if (scale < 0) {
    return ffi::Unexpected(
        ffi::Error::InvalidArgument("GpuScale: scale must not be negative"));
  }
  return std::make_unique<GpuPlan>(scale);
}

ffi::Error Prepare(GpuPlan* plan, Floats, FloatResult, double scale) {
  ++counts[kPrepared];
  plan->prepared = plan->scale == scale;
  return ffi::Error::Success();
}

ffi::Error Initialize(GpuPlan* plan, Floats, FloatResult, double) {
  ++counts[kInitialized];
  plan->initialized = plan->prepared;
  return ffi::Error::Success();
}

// The result is scale * x + the number of earlier executions of this call.
ffi::Error Execute(cudaStream_t stream, GpuPlan* plan, Floats x,
                   FloatResult out, double) {
  if (!plan->initialized) return ffi::Error::Internal("not initialized");
  ++counts[kExecuted];
  return Launch(stream, x, out, plan->scale, plan->executions++);
}

// The handler has no trait: its registration decides whether it runs in CUDA
// graphs.
ffi::Error ExecuteWithoutState(cudaStream_t stream, Floats x, FloatResult out,
                               double scale) {
  return Launch(stream, x, out, scale, 0);
}

template <ffi::ExecutionStage stage>
auto BindBefore() {
  return ffi::Ffi::Bind<stage>()
      .template Ctx<ffi::State<GpuPlan>>()
      .template Arg<Floats>()
      .template Ret<Floats>()
      .template Attr<double>("scale");
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT XLA_FFI_Error* GpuScaleInstantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate()
                             .Attr<double>("scale")
                             .To(Instantiate)
                             .release();
  return handler->Call(frame);
}

EXPORT XLA_FFI_Error* GpuScalePrepare(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      BindBefore<ffi::ExecutionStage::kPrepare>().To(Prepare).release();
  return handler->Call(frame);
}

EXPORT XLA_FFI_Error* GpuScaleInitialize(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      BindBefore<ffi::ExecutionStage::kInitialize>().To(Initialize).release();
  return handler->Call(frame);
}

EXPORT XLA_FFI_Error* GpuScaleExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::PlatformStream<cudaStream_t>>()
                             .Ctx<ffi::State<GpuPlan>>()
                             .Arg<Floats>()
                             .Ret<Floats>()
                             .Attr<double>("scale")
                             .To(Execute)
                             .release();
  return handler->Call(frame);
}

EXPORT XLA_FFI_Error* GpuScaleWithoutState(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::PlatformStream<cudaStream_t>>()
                             .Arg<Floats>()
                             .Ret<Floats>()
                             .Attr<double>("scale")
                             .To(ExecuteWithoutState)
                             .release();
  return handler->Call(frame);
}

EXPORT const XLA_FFI_Handler_Bundle* GpuScaleBundle() {
  static const XLA_FFI_Handler_Bundle bundle = {
      GpuScaleInstantiate, GpuScalePrepare, GpuScaleInitialize,
      GpuScaleExecute};
  return &bundle;
}

EXPORT XLA_FFI_TypeId* GpuScaleTypeId() { return &GpuPlan::id; }

EXPORT void CountGpuCalls(int64_t* result) {
  for (const auto& count : counts) *result++ = count;
}
