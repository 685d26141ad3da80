// The part of TVM-FFI's C ABI that a caller of functions needs, as
// apache-tvm-ffi 0.1 defines it in tvm/ffi/c_api.h, tvm/ffi/extra/c_env_api.h
// and dlpack/dlpack.h. Comments give TVM's own names.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_ABI_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_ABI_H_

#include <cstddef>
#include <cstdint>

namespace torch_xla_ext::tvm_ffi {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2 };  // DLDeviceType

struct Device {  // DLDevice
  DeviceType type;
  int32_t id;
};

enum DataTypeCode : uint8_t {  // DLDataTypeCode
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBFloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E3M4 = 7,
  kFloat8E4M3 = 8,
  kFloat8E4M3B11FNUZ = 9,
  kFloat8E4M3FN = 10,
  kFloat8E4M3FNUZ = 11,
  kFloat8E5M2 = 12,
  kFloat8E5M2FNUZ = 13,
  kFloat8E8M0FNU = 14,
};

struct DataType {  // DLDataType
  DataTypeCode code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {  // DLTensor
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; never null
  uint64_t byte_offset;
};

struct ManagedTensor {  // DLManagedTensorVersioned
  uint32_t major_version;
  uint32_t minor_version;
  void* context;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  Tensor tensor;
};

// Allocates a tensor like `prototype`. Returns 0 on success; otherwise calls
// set_error and returns another value. DLPackManagedTensorAllocator.
using Allocator = int (*)(Tensor* prototype, ManagedTensor** out,
                          void* error_context,
                          void (*set_error)(void* error_context,
                                            const char* kind,
                                            const char* message));

enum TypeIndex : int32_t {  // TVMFFITypeIndex
  kNoneValue = 0,
  kIntValue = 1,
  kBoolValue = 2,
  kFloatValue = 3,
  kCString = 8,
  kFirstObject = 64,
  kTensorObject = 70,
};

// The counts of an object with one owner: a strong reference and a weak one.
inline constexpr uint64_t kOneReference = (uint64_t{1} << 32) + 1;
// The flag that makes a deleter also free the object's memory.
inline constexpr int kFreeMemory = 2;

// The header of every object; the members of its type follow. TVMFFIObject.
struct Object {
  uint64_t references;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
};

struct Any {  // TVMFFIAny
  int32_t type_index;
  uint32_t padding;  // zero
  union {
    int64_t integer;
    double number;
    const char* text;
    Object* object;
  };
};

struct ByteArray {  // TVMFFIByteArray
  const char* data;
  size_t size;
};

struct Error {  // TVMFFIObject and the beginning of TVMFFIErrorCell
  Object header;
  ByteArray kind;
  ByteArray message;
};

struct Function {  // TVMFFIObject and the beginning of TVMFFIFunctionCell
  Object header;
  // Returns 0 on success; otherwise TVMFFIErrorMoveFromRaised returns the
  // error.
  int (*safe_call)(void* self, const Any* args, int32_t num_args, Any* result);
};

struct TensorObject {  // TVMFFIObject and a DLTensor
  Object header;
  Tensor tensor;
};

static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 80);
static_assert(sizeof(Object) == 24 && sizeof(Any) == 16);

}  // namespace torch_xla_ext::tvm_ffi

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_ABI_H_
