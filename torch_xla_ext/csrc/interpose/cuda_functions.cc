// Adds c10::cuda::set_device(int8_t), which the upstream binary calls and torch
// 2.8.0 does not have.
//
// Upstream declares it itself (torch_xla/csrc/aten_cuda_functions.h), but torch
// 2.8.0 has set_device(int8_t, bool force = false). If CUDA is not available,
// upstream's torch_xla/__init__.py loads stubs that throw
// (_XLAC_cuda_functions), and the upstream binary finds those first. If CUDA is
// available, as with the torch of the Python package index on a machine with a
// GPU, there are no stubs: `import torch_xla` of the upstream wheel fails with
// "undefined symbol: _ZN3c104cuda10set_deviceEa", whatever PJRT_DEVICE is. With
// this library, the upstream binary finds the function below.
#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

namespace c10::cuda {

void set_device(std::int8_t device) {
  // The mangled name of set_device(int8_t, bool). libc10_cuda is a dependency
  // of torch's, and so of this library's.
  using SetDevice = void (*)(std::int8_t, bool);
  static const auto torch_set_device = reinterpret_cast<SetDevice>(
      dlsym(RTLD_NEXT, "_ZN3c104cuda10set_deviceEab"));
  if (torch_set_device == nullptr) {
    throw std::runtime_error("this torch was built without CUDA");
  }
  torch_set_device(device, /*force=*/false);
}

}  // namespace c10::cuda
