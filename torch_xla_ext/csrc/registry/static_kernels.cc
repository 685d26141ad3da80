#include "torch_xla_ext/csrc/registry/static_kernels.h"

#include <stdexcept>
#include <vector>

#include "torch_xla_ext/csrc/registry/registration.h"
#include "torch_xla_ext/csrc/registry/text.h"
#include "torch_xla_ext/static_kernel.h"

namespace torch_xla_ext {
namespace {

// Made by the first static initialiser that needs it, and never destroyed.
std::vector<StaticKernel>& Kernels() {
  static std::vector<StaticKernel>& kernels = *new std::vector<StaticKernel>;
  return kernels;
}

std::vector<StaticSize>& SizeFunctions() {
  static std::vector<StaticSize>& sizes = *new std::vector<StaticSize>;
  return sizes;
}

}  // namespace

bool AddStaticSize(const StaticSize& size) {
  SizeFunctions().push_back(size);
  return true;
}

std::vector<std::tuple<std::string, std::string, uintptr_t>>
StaticKernelSizes() {
  std::vector<std::tuple<std::string, std::string, uintptr_t>> sizes;
  for (const StaticSize& size : SizeFunctions()) {
    sizes.emplace_back(size.target, size.name,
                       reinterpret_cast<uintptr_t>(size.function));
  }
  return sizes;
}

bool AddStaticKernel(const StaticKernel& kernel) {
  Kernels().push_back(kernel);
  return true;
}

void RegisterStaticKernels() {
  std::map<std::string, std::string> schemas;
  for (const StaticKernel& kernel : Kernels()) {
    // A schema begins with the target's name. A different name means that two
    // kernels share C++ names, and the linker kept only one of them.
    if (std::string(kernel.schema).rfind(kernel.target + std::string("("), 0) !=
        0) {
      throw std::runtime_error(
          "custom-call target " + Quoted(kernel.target) +
          " has the signature of another kernel, " + Quoted(kernel.schema) +
          ": use different names for the C++ constants of the two");
    }
    const std::string& schema =
        schemas.emplace(kernel.target, kernel.schema).first->second;
    if (schema != kernel.schema) {
      throw std::runtime_error(
          "custom-call target " + Quoted(kernel.target) +
          " was compiled for CUDA and for the Host from different "
          "definitions: " +
          Quoted(schema) + " and " + Quoted(kernel.schema));
    }
    RegisterTarget(kernel.target, reinterpret_cast<void*>(kernel.ffi_entry),
                   kernel.platform, TargetApi::kFfi);
  }
}

std::map<std::string, std::string> StaticKernelSchemas() {
  std::map<std::string, std::string> schemas;
  for (const StaticKernel& kernel : Kernels()) {
    schemas.emplace(kernel.target, kernel.schema);
  }
  return schemas;
}

}  // namespace torch_xla_ext
