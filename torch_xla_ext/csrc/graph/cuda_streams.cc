#include "torch_xla_ext/csrc/graph/cuda_streams.h"

#include <cuda.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>

#include "torch_xla_ext/csrc/launchers/cuda_driver.h"
#include "torch_xla_ext/csrc/registry/registration.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext::graph {
namespace {

void Check(CUresult result, const char* function) {
  if (result == CUDA_SUCCESS) return;
  throw std::runtime_error("ordering PyTorch's and XLA's work: " +
                           GetCudaDriver().Text(result, function));
}

struct ComputeStream {
  CUstream stream;
  CUcontext context;  // of both sides: the device's primary context
  CUevent event;
};

std::atomic<const ComputeStream*> compute_stream{nullptr};

// Makes a context the thread's current one. This is needed because CUDA finds
// the default stream, which PyTorch uses, through the current context, and a
// thread without one may free tensors.
class CurrentContext {
 public:
  explicit CurrentContext(CUcontext context) {
    Check(GetCudaDriver().CtxPushCurrent(context), "cuCtxPushCurrent");
  }
  ~CurrentContext() {
    CUcontext context = nullptr;
    GetCudaDriver().CtxPopCurrent(&context);
  }
};

const ComputeStream& GetComputeStream() {
  const ComputeStream* const stream = compute_stream.load();
  if (stream == nullptr) {
    throw std::logic_error(std::string(kComputeStreamTarget) +
                           " has not been called");
  }
  return *stream;
}

// Makes `second` wait for the work that is already in `first`. A wait refers to
// the event's current state, so one event serves all waits, one at a time.
void Order(const ComputeStream& ours, CUstream first, CUstream second) {
  static std::mutex& mutex = *new std::mutex;
  const CudaDriver& driver = GetCudaDriver();
  const CurrentContext context(ours.context);
  const std::lock_guard<std::mutex> lock(mutex);
  Check(driver.EventRecord(ours.event, first), "cuEventRecord");
  Check(driver.StreamWaitEvent(second, ours.event, 0), "cuStreamWaitEvent");
}

xla::ffi::Error KeepComputeStream(CUstream stream) {
  try {
    const CudaDriver& driver = GetCudaDriver();
    ComputeStream* const ours = new ComputeStream{stream, nullptr, nullptr};
    Check(driver.CtxGetCurrent(&ours->context), "cuCtxGetCurrent");
    Check(driver.EventCreate(&ours->event, CU_EVENT_DISABLE_TIMING),
          "cuEventCreate");
    compute_stream.store(ours);
  } catch (const std::exception& error) {
    return xla::ffi::Error::Internal(error.what());
  }
  return xla::ffi::Error::Success();
}

XLA_FFI_Error* OnCuda(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      xla::ffi::Ffi::Bind()
          .Ctx<xla::ffi::PlatformStream<CUstream>>()
          .RemainingArgs()
          .RemainingRets()
          .To([](CUstream stream, xla::ffi::RemainingArgs,
                 xla::ffi::RemainingRets) { return KeepComputeStream(stream); })
          .release();
  return handler->Call(frame);
}

const bool stream_target_registered = [] {
  RegisterTarget(kComputeStreamTarget, reinterpret_cast<void*>(&OnCuda),
                 kCudaPlatform, TargetApi::kFfi);
  return true;
}();

}  // namespace

bool IsComputeStreamKnown() { return compute_stream.load() != nullptr; }

void XlaWaitsFor(uintptr_t stream) {
  const ComputeStream& ours = GetComputeStream();
  const CurrentContext context(ours.context);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  Check(GetCudaDriver().StreamIsCapturing(reinterpret_cast<CUstream>(stream),
                                          &status),
        "cuStreamIsCapturing");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
    // Otherwise XLA's stream would become part of the capture.
    throw std::runtime_error(
        "torch.compile(backend=\"openxla\"): a CUDA graph cannot capture XLA's "
        "programs: call the function outside of torch.cuda.graph");
  }
  Order(ours, reinterpret_cast<CUstream>(stream), ours.stream);
}

void WaitsForXla(uintptr_t stream) {
  const ComputeStream& ours = GetComputeStream();
  Order(ours, ours.stream, reinterpret_cast<CUstream>(stream));
}

}  // namespace torch_xla_ext::graph
