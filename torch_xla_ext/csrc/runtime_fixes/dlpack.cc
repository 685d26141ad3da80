#include "torch_xla_ext/csrc/runtime_fixes/dlpack.h"

#include <ATen/ATen.h>

#include <cstdint>

namespace torch_xla_ext {
namespace {

// XLA:CPU uses vector instructions that need this.
constexpr uintptr_t kAlignment = 64;

void* DataOf(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

bool IsRowMajor(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  bool is_row_major = true;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    is_row_major &= tensor.shape[i] == 1 || tensor.strides[i] == expected;
    expected *= tensor.shape[i];
  }
  return is_row_major;
}

}  // namespace

at::Tensor FromDlpack(DLManagedTensor* source,
                      at::Tensor (*convert)(DLManagedTensor*)) {
  const DLTensor& tensor = source->dl_tensor;
  const bool is_row_major = IsRowMajor(tensor);
  const bool is_on_cpu = tensor.device.device_type == kDLCPU;
  if (is_row_major &&
      (!is_on_cpu ||
       reinterpret_cast<uintptr_t>(DataOf(tensor)) % kAlignment == 0)) {
    return convert(source);
  }
  const at::IntArrayRef sizes(tensor.shape, tensor.ndim);
  TORCH_CHECK(
      is_on_cpu,
      "from_dlpack: an XLA tensor needs row-major memory, but this tensor of "
      "shape ",
      sizes, " has the strides ", at::IntArrayRef(tensor.strides, tensor.ndim),
      ": call .contiguous() on it first");
  const at::TensorOptions options(at::toScalarType(tensor.dtype));
  const at::Tensor elements =
      is_row_major ? at::from_blob(DataOf(tensor), sizes, options)
                   : at::from_blob(DataOf(tensor), sizes,
                                   at::IntArrayRef(tensor.strides, tensor.ndim),
                                   options);
  DLManagedTensor* const copy =
      at::toDLPack(elements.clone(at::MemoryFormat::Contiguous));
  at::Tensor result;
  try {
    result = convert(copy);
  } catch (...) {
    copy->deleter(copy);
    throw;
  }
  if (source->deleter != nullptr) source->deleter(source);
  return result;
}

}  // namespace torch_xla_ext
