// TVM-FFI functions like those in packages: one in a build of Hugging Face's
// kernel-builder, and FlashInfer's for bfloat16.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

namespace {

float Value(const TensorView& tensor, int64_t i) {
  const uint32_t bits =
      uint32_t{static_cast<const uint16_t*>(tensor.data_ptr())[i]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void SetValue(TensorView& tensor, int64_t i, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  static_cast<uint16_t*>(tensor.data_ptr())[i] = (bits + 0x8000) >> 16;
}

void Relu(TensorView out, TensorView x) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = std::fmax(from[i], 0.f);
}

void RmsNorm(TensorView out, TensorView input, TensorView weight, double eps,
             bool) {
  const int64_t columns = weight.numel();
  for (int64_t row = 0; row < input.numel() / columns; ++row) {
    double total = 0;
    for (int64_t j = 0; j < columns; ++j) {
      total += std::pow(Value(input, row * columns + j), 2);
    }
    for (int64_t j = 0; j < columns; ++j) {
      SetValue(out, row * columns + j,
               Value(input, row * columns + j) /
                   std::sqrt(total / columns + eps) * Value(weight, j));
    }
  }
}

void FusedAddRmsNorm(TensorView input, TensorView residual, TensorView weight,
                     double eps, bool pdl) {
  for (int64_t i = 0; i < input.numel(); ++i) {
    SetValue(residual, i, Value(input, i) + Value(residual, i));
  }
  RmsNorm(input, residual, weight, eps, pdl);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relu_cpu, Relu);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, RmsNorm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fused_add_rmsnorm, FusedAddRmsNorm);
