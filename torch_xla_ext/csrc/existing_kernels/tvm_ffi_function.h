// Functions of the TVM-FFI ABI, called through libtvm_ffi, which is loaded when
// it is first needed.
#ifndef TORCH_XLA_EXT_CSRC_EXISTING_KERNELS_TVM_FFI_FUNCTION_H_
#define TORCH_XLA_EXT_CSRC_EXISTING_KERNELS_TVM_FFI_FUNCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/existing_kernels/tvm_ffi_abi.h"

namespace torch_xla_ext::tvm_ffi {

// Loads libtvm_ffi, unless this process has called it already. Its symbols are
// global: the libraries that are written for it need not be linked to it.
// Throws std::runtime_error if it cannot be loaded, or lacks a function.
void LoadLibrary(const std::string& path);

// An object that the holder has a reference to.
class Reference {
 public:
  Reference() = default;
  explicit Reference(Object* object) : object_(object) {}  // takes the caller's
  Reference(Reference&& other) noexcept : object_(other.Release()) {}
  Reference& operator=(Reference&& other) noexcept;
  ~Reference();

  Object* get() const { return object_; }
  Object* Release();

 private:
  Object* object_ = nullptr;
};

// The function `symbol` of a shared library that was made for TVM-FFI, loaded
// with all that TVM's own loader does; none if it has no such function. Throws
// std::runtime_error.
Reference FunctionOfLibrary(const std::string& library,
                            const std::string& symbol);

// Throws std::runtime_error with the error's kind and text.
// Returns the object that the function returned, if it returned one.
Reference Call(Object* function, const std::vector<Any>& args);

// A TVM-FFI array of numbers.
Reference ArrayOf(const std::vector<Any>& elements);

// A row-major tensor on memory that it does not own.
Reference TensorOn(void* data, Device device, DataType dtype,
                   const std::vector<int64_t>& shape);

// While it lives, functions that this thread calls find `stream` as the
// device's, and get the memory that they ask the environment for there.
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

#endif  // TORCH_XLA_EXT_CSRC_EXISTING_KERNELS_TVM_FFI_FUNCTION_H_
