// The part of NVIDIA's libraries with which discovery finds a GPU, and kernels
// can be launched. Launches are recorded. Built as libcuda.so.1 and as
// libcudnn.so.9.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

// A line for each call of the driver.
std::string& Log() {
  static auto& log = *new std::string;
  return log;
}

// The sizes of the parameters of the kernels that are launched next, in bytes.
std::vector<int>& ParameterSizes() {
  static auto& sizes = *new std::vector<int>;
  return sizes;
}

void* Handle(int number) { return reinterpret_cast<void*>(0x1000L + number); }

void AddNumbers(const char* name, unsigned x, unsigned y, unsigned z) {
  Log() += std::string(" ") + name + "=" + std::to_string(x) + "," +
           std::to_string(y) + "," + std::to_string(z);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
// Callers ask only for the compute capability, which is 9.0.
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                              CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = static_cast<CUcontext>(Handle(1));
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "made up";
  return CUDA_SUCCESS;
}
// Functions that are looked up with the others, but not called.
CUresult cuCtxPopCurrent(CUcontext*) { return CUDA_ERROR_UNKNOWN; }
CUresult cuCtxPushCurrent(CUcontext) { return CUDA_ERROR_UNKNOWN; }
CUresult cuEventCreate(CUevent*, unsigned) { return CUDA_ERROR_UNKNOWN; }
CUresult cuEventRecord(CUevent, CUstream) { return CUDA_ERROR_UNKNOWN; }
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus*) {
  return CUDA_ERROR_UNKNOWN;
}
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) {
  return CUDA_ERROR_UNKNOWN;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
  return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr*, size_t, CUstream) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFreeAsync(CUdeviceptr, CUstream) { return CUDA_SUCCESS; }

// A module whose text begins with "bad" is refused, with a message in the log
// that the caller gave.
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                            CUjit_option* options, void** values) {
  const auto* text = static_cast<const char*>(image);
  if (std::strncmp(text, "bad", 3) == 0) {
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
        std::strcpy(static_cast<char*>(values[i]), "ptxas: a syntax error");
      }
    }
    return CUDA_ERROR_INVALID_PTX;
  }
  Log() += std::string("load ") + text + "\n";
  *module = static_cast<CUmodule>(Handle(2));
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) {
  Log() += "unload\n";
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  if (std::strcmp(name, "missing") == 0) return CUDA_ERROR_NOT_FOUND;
  Log() += std::string("function ") + name + "\n";
  *function = static_cast<CUfunction>(Handle(3));
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
  *value = 40000;  // 48 KB without what the kernel has statically
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute,
                            int value) {
  Log() += "attribute " + std::to_string(attribute) + "=" +
           std::to_string(value) + "\n";
  return CUDA_SUCCESS;
}
// A map begins with the array's address. A swizzle of 9 is refused.
CUresult cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  if (swizzle == 9) return CUDA_ERROR_INVALID_VALUE;
  Log() += "map type=" + std::to_string(type) +
           " swizzle=" + std::to_string(swizzle) +
           " fill=" + std::to_string(fill) + " sizes";
  for (unsigned i = 0; i < rank; ++i) Log() += " " + std::to_string(sizes[i]);
  Log() += " strides";
  for (unsigned i = 0; i + 1 < rank; ++i) {
    Log() += " " + std::to_string(strides[i]);
  }
  Log() += " box";
  for (unsigned i = 0; i < rank; ++i) Log() += " " + std::to_string(box[i]);
  Log() += "\n";
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction,
                          void** parameters, void**) {
  Log() += "launch";
  AddNumbers("grid", config->gridDimX, config->gridDimY, config->gridDimZ);
  AddNumbers("block", config->blockDimX, config->blockDimY, config->blockDimZ);
  Log() += " shared=" + std::to_string(config->sharedMemBytes);
  Log() +=
      " stream=" + std::to_string(reinterpret_cast<size_t>(config->hStream));
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      Log() += " cooperative";
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      Log() += " dependent";
    }
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const auto& cluster = attribute.value.clusterDim;
      AddNumbers("cluster", cluster.x, cluster.y, cluster.z);
    }
    if (attribute.id ==
        CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) {
      Log() += " spread";
    }
  }
  for (size_t i = 0; i < ParameterSizes().size(); ++i) {
    Log() += " ";
    for (int byte = 0; byte < ParameterSizes()[i]; ++byte) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x",
                    static_cast<unsigned char*>(parameters[i])[byte]);
      Log() += digits;
    }
  }
  Log() += "\n";
  return CUDA_SUCCESS;
}

// For tests: what happened since the last call, and what is launched next.
const char* fake_driver_log() {
  static auto& shown = *new std::string;
  shown = Log();
  Log().clear();
  return shown.c_str();
}
void fake_driver_parameter_sizes(const int* sizes, int count) {
  ParameterSizes().assign(sizes, sizes + count);
}

size_t cudnnGetVersion() { return 91002; }
size_t cudnnGetCudartVersion() { return 13000; }

}  // extern "C"
