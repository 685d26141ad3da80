#include "torch_xla_ext/csrc/launchers/cuda_driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace torch_xla_ext {
namespace {

template <typename Function>
void LookUp(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    throw std::runtime_error(std::string("the CUDA driver has no ") + name +
                             ": it is too old");
  }
}

CudaDriver Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(std::string("there is no CUDA driver: ") +
                             dlerror());
  }
  CudaDriver driver;
  LookUp(library, "cuCtxGetCurrent", &driver.CtxGetCurrent);
  LookUp(library, "cuCtxGetDevice", &driver.CtxGetDevice);
  LookUp(library, "cuCtxPopCurrent_v2", &driver.CtxPopCurrent);
  LookUp(library, "cuCtxPushCurrent_v2", &driver.CtxPushCurrent);
  LookUp(library, "cuEventCreate", &driver.EventCreate);
  LookUp(library, "cuEventRecord", &driver.EventRecord);
  LookUp(library, "cuFuncGetAttribute", &driver.FuncGetAttribute);
  LookUp(library, "cuFuncSetAttribute", &driver.FuncSetAttribute);
  LookUp(library, "cuGetErrorName", &driver.GetErrorName);
  LookUp(library, "cuGetErrorString", &driver.GetErrorString);
  LookUp(library, "cuLaunchKernelEx", &driver.LaunchKernelEx);
  LookUp(library, "cuMemAllocAsync", &driver.MemAllocAsync);
  LookUp(library, "cuMemFreeAsync", &driver.MemFreeAsync);
  LookUp(library, "cuModuleGetFunction", &driver.ModuleGetFunction);
  LookUp(library, "cuModuleLoadDataEx", &driver.ModuleLoadDataEx);
  LookUp(library, "cuModuleUnload", &driver.ModuleUnload);
  LookUp(library, "cuStreamIsCapturing", &driver.StreamIsCapturing);
  LookUp(library, "cuStreamWaitEvent", &driver.StreamWaitEvent);
  LookUp(library, "cuTensorMapEncodeTiled", &driver.TensorMapEncodeTiled);
  LookUp(library, "cuThreadExchangeStreamCaptureMode",
         &driver.ThreadExchangeStreamCaptureMode);
  return driver;
}

}  // namespace

std::string CudaDriver::Text(CUresult result, const char* function) const {
  const char* name = nullptr;
  const char* text = nullptr;
  GetErrorName(result, &name);
  GetErrorString(result, &text);
  return std::string(function) + ": " +
         (name == nullptr ? "unknown error" : name) + " (" +
         (text == nullptr ? "" : text) + ")";
}

void CudaDriver::Check(CUresult result, const char* function) const {
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(Text(result, function));
  }
}

const CudaDriver& GetCudaDriver() {
  static const CudaDriver driver = Load();
  return driver;
}

}  // namespace torch_xla_ext
