// Calls functions of the TVM-FFI ABI through libtvm_ffi, which is loaded on
// first use.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_FUNCTION_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_FUNCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/launchers/tvm_ffi_abi.h"

namespace torch_xla_ext::tvm_ffi {

// Loads libtvm_ffi, unless this process has done so already. Its symbols are
// made global, because libraries written for it need not be linked to it.
// Throws std::runtime_error if it cannot be loaded, or lacks a function.
void LoadLibrary(const std::string& path);

// An owning reference to an object.
class Reference {
 public:
  Reference() = default;
  explicit Reference(Object* object)
      : object_(object) {}  // takes the caller's reference
  Reference(Reference&& other) noexcept : object_(other.Release()) {}
  Reference& operator=(Reference&& other) noexcept;
  ~Reference();

  Object* get() const { return object_; }
  Object* Release();

 private:
  Object* object_ = nullptr;
};

// The function `symbol` of a shared library that was built for TVM-FFI, loaded
// as TVM's own loader does it; empty if the library has no such function.
// Throws std::runtime_error.
Reference FunctionOfLibrary(const std::string& library,
                            const std::string& symbol);

// Throws std::runtime_error with the error's kind and text.
// Returns the object that the function returned, if it returned one.
Reference Call(Object* function, const std::vector<Any>& args);

// A TVM-FFI array of numbers.
Reference ArrayOf(const std::vector<Any>& elements);

// A row-major tensor over memory that it does not own.
Reference TensorOn(void* data, Device device, DataType dtype,
                   const std::vector<int64_t>& shape);

// During its lifetime, functions that this thread calls see `stream` as the
// device's stream, and the memory that they request from the environment is
// allocated on it.
class Environment {
 public:
  Environment(Device device, void* stream);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  Device device_;
  void* stream_before_ = nullptr;
  Allocator allocator_before_ = nullptr;
};

}  // namespace torch_xla_ext::tvm_ffi

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_FUNCTION_H_
