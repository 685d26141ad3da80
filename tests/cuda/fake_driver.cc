// Just enough of NVIDIA's libraries for discovery to think that there is a GPU;
// built as libcuda.so.1 and as libcudnn.so.9.
#include <cstddef>

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
// Of the attributes only the compute capability is asked: 9.0.
int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kComputeCapabilityMajor = 75;
  *value = attribute == kComputeCapabilityMajor ? 9 : 0;
  return 0;
}

size_t cudnnGetVersion() { return 91002; }
size_t cudnnGetCudartVersion() { return 13000; }

}  // extern "C"
