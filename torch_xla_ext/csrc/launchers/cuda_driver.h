// The functions of the CUDA driver that this project calls. They are looked up
// in the driver's library on first use, so that a process also starts without a
// GPU and its driver.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_CUDA_DRIVER_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_CUDA_DRIVER_H_

#include <cuda.h>

#include <string>

namespace torch_xla_ext {

struct CudaDriver {
  decltype(&::cuCtxGetCurrent) CtxGetCurrent;
  decltype(&::cuCtxGetDevice) CtxGetDevice;
  decltype(&::cuCtxPopCurrent) CtxPopCurrent;
  decltype(&::cuCtxPushCurrent) CtxPushCurrent;
  decltype(&::cuEventCreate) EventCreate;
  decltype(&::cuEventRecord) EventRecord;
  decltype(&::cuFuncGetAttribute) FuncGetAttribute;
  decltype(&::cuFuncSetAttribute) FuncSetAttribute;
  decltype(&::cuGetErrorName) GetErrorName;
  decltype(&::cuGetErrorString) GetErrorString;
  decltype(&::cuLaunchKernelEx) LaunchKernelEx;
  decltype(&::cuMemAllocAsync) MemAllocAsync;
  decltype(&::cuMemFreeAsync) MemFreeAsync;
  decltype(&::cuModuleGetFunction) ModuleGetFunction;
  decltype(&::cuModuleLoadDataEx) ModuleLoadDataEx;
  decltype(&::cuModuleUnload) ModuleUnload;
  decltype(&::cuStreamIsCapturing) StreamIsCapturing;
  decltype(&::cuStreamWaitEvent) StreamWaitEvent;
  decltype(&::cuTensorMapEncodeTiled) TensorMapEncodeTiled;
  decltype(&::cuThreadExchangeStreamCaptureMode)
      ThreadExchangeStreamCaptureMode;

  // The function's name, and the driver's text for its error code.
  std::string Text(CUresult result, const char* function) const;
  // Throws std::runtime_error with Text(), unless the function succeeded.
  void Check(CUresult result, const char* function) const;
};

// Throws std::runtime_error if this machine has no driver.
const CudaDriver& GetCudaDriver();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_CUDA_DRIVER_H_
