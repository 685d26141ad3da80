#include "torch_xla_ext/csrc/graph/cuda_streams.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>

#include "torch_xla_ext/csrc/registry/registration.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext::graph {
namespace {

// The functions of the CUDA driver that are called here, by the symbols that
// cuda.h gives them. A build needs no CUDA toolkit, and a process no driver
// until they are called. CUstream, CUevent and CUcontext are pointers, and
// CUresult an int.
struct Driver {
  int (*CtxGetCurrent)(void** context);
  int (*CtxPushCurrent)(void* context);
  int (*CtxPopCurrent)(void** context);
  int (*EventCreate)(void** event, unsigned flags);
  int (*EventRecord)(void* event, void* stream);
  int (*StreamIsCapturing)(void* stream, int* status);
  int (*StreamWaitEvent)(void* stream, void* event, unsigned flags);
  int (*GetErrorName)(int error, const char** name);

  void Check(int error, const char* function) const {
    if (error == 0) return;
    const char* name = nullptr;
    GetErrorName(error, &name);
    throw std::runtime_error(
        std::string("ordering PyTorch's and XLA's work: ") + function + ": " +
        (name == nullptr ? "unknown error" : name));
  }
};

template <typename Function>
void LookUp(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    throw std::runtime_error(std::string("the CUDA driver has no ") + name);
  }
}

const Driver& GetDriver() {
  static const Driver driver = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw std::runtime_error(std::string("there is no CUDA driver: ") +
                               dlerror());
    }
    Driver result;
    LookUp(library, "cuCtxGetCurrent", &result.CtxGetCurrent);
    LookUp(library, "cuCtxPushCurrent_v2", &result.CtxPushCurrent);
    LookUp(library, "cuCtxPopCurrent_v2", &result.CtxPopCurrent);
    LookUp(library, "cuEventCreate", &result.EventCreate);
    LookUp(library, "cuEventRecord", &result.EventRecord);
    LookUp(library, "cuStreamIsCapturing", &result.StreamIsCapturing);
    LookUp(library, "cuStreamWaitEvent", &result.StreamWaitEvent);
    LookUp(library, "cuGetErrorName", &result.GetErrorName);
    return result;
  }();
  return driver;
}

struct ComputeStream {
  void* stream;
  void* context;  // of both sides: the device's primary context
  void* event;
};

std::atomic<const ComputeStream*> compute_stream{nullptr};

// Makes a context the thread's current one. PyTorch's default stream is the
// context's own, which CUDA knows by the current context alone, and tensors are
// freed in threads that have none.
class CurrentContext {
 public:
  explicit CurrentContext(void* context) {
    GetDriver().Check(GetDriver().CtxPushCurrent(context), "cuCtxPushCurrent");
  }
  ~CurrentContext() {
    void* context = nullptr;
    GetDriver().CtxPopCurrent(&context);
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

// Makes `second` wait for what `first` has been given so far. A wait is for the
// event as it is then, so one event serves all, one at a time.
void Order(const ComputeStream& ours, void* first, void* second) {
  static std::mutex& mutex = *new std::mutex;
  const Driver& driver = GetDriver();
  const CurrentContext context(ours.context);
  const std::lock_guard<std::mutex> lock(mutex);
  driver.Check(driver.EventRecord(ours.event, first), "cuEventRecord");
  driver.Check(driver.StreamWaitEvent(second, ours.event, 0),
               "cuStreamWaitEvent");
}

xla::ffi::Error KeepComputeStream(void* stream) {
  try {
    const Driver& driver = GetDriver();
    ComputeStream* const ours = new ComputeStream{stream, nullptr, nullptr};
    driver.Check(driver.CtxGetCurrent(&ours->context), "cuCtxGetCurrent");
    constexpr unsigned kDisableTiming = 2;
    driver.Check(driver.EventCreate(&ours->event, kDisableTiming),
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
          .Ctx<xla::ffi::PlatformStream<void*>>()
          .RemainingArgs()
          .RemainingRets()
          .To([](void* stream, xla::ffi::RemainingArgs,
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
  int status = 0;
  GetDriver().Check(
      GetDriver().StreamIsCapturing(reinterpret_cast<void*>(stream), &status),
      "cuStreamIsCapturing");
  if (status != 0) {
    // XLA's stream would become a part of the capture.
    throw std::runtime_error(
        "torch.compile(backend=\"openxla\"): a CUDA graph cannot capture XLA's "
        "programs: call the function outside of torch.cuda.graph");
  }
  Order(ours, reinterpret_cast<void*>(stream), ours.stream);
}

void WaitsForXla(uintptr_t stream) {
  const ComputeStream& ours = GetComputeStream();
  Order(ours, ours.stream, reinterpret_cast<void*>(stream));
}

}  // namespace torch_xla_ext::graph
