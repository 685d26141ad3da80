// TVM-FFI functions in the style of FlashInfer's: they check their arguments
// and write their results to the caller's tensors.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cmath>
#include <cstdint>
#include <string>

#ifndef FACTOR  // the test also compiles it with another value
#define FACTOR 2
#endif

namespace ffi = tvm::ffi;
using ffi::TensorView;

namespace {

const float* Floats(const TensorView& tensor) {
  return static_cast<const float*>(tensor.data_ptr());
}

float* Floats(TensorView& tensor) {
  return static_cast<float*>(tensor.data_ptr());
}

// The result comes first, as in FlashInfer.
void RmsNorm(TensorView out, TensorView x, ffi::Optional<TensorView> weight,
             double epsilon, bool add_one, ffi::String mode) {
  if (x.ndim() != 2 || x.dtype().bits != 32) {
    TVM_FFI_THROW(ValueError)
        << "x must be a matrix of float32, but has " << x.ndim()
        << " dimensions of " << static_cast<int>(x.dtype().bits) << " bits";
  }
  if (x.stride(0) != x.size(1) || x.stride(1) != 1) {
    TVM_FFI_THROW(ValueError) << "x must be row-major";
  }
  if (mode != "mean" && mode != "sum") {
    TVM_FFI_THROW(ValueError) << "no such mode: " << std::string(mode);
  }
  const int64_t columns = x.size(1);
  for (int64_t i = 0; i < x.size(0); ++i) {
    double total = 0;
    for (int64_t j = 0; j < columns; ++j) {
      total += std::pow(Floats(x)[i * columns + j], 2);
    }
    if (mode == "mean") total /= columns;
    for (int64_t j = 0; j < columns; ++j) {
      const double factor =
          (weight.has_value() ? Floats(weight.value())[j] : 1) + add_one;
      Floats(out)[i * columns + j] =
          Floats(x)[i * columns + j] / std::sqrt(total + epsilon) * factor;
    }
  }
}

void AddInPlace(TensorView state, TensorView x, int64_t times) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    Floats(state)[i] += times * Floats(x)[i];
  }
}

// Writes the shape, the dtype, the device and the sum of `weights`.
void Describe(TensorView x, TensorView out, ffi::Array<int64_t> weights) {
  auto* numbers = static_cast<int64_t*>(out.data_ptr());
  int64_t total = 0;
  for (const int64_t weight : weights) total += weight;
  const int64_t values[] = {
      x.ndim(),       x.ndim() == 0 ? -1 : x.size(0), x.dtype().code,
      x.dtype().bits, x.device().device_type,         x.device().device_id,
      total};
  for (int i = 0; i < 7; ++i) numbers[i] = values[i];
}

// FACTOR times x, through memory allocated by the environment.
void Twice(TensorView x, TensorView out) {
  ffi::Tensor half = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(),
                                               x.dtype(), x.device());
  auto* memory = static_cast<float*>(half.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) memory[i] = Floats(x)[i];
  for (int64_t i = 0; i < x.numel(); ++i) Floats(out)[i] = FACTOR * memory[i];
}

// Returns a new tensor, which the caller did not ask for.
ffi::Tensor Own(TensorView x, TensorView /*out*/) {
  return ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(),
                                   x.device());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, RmsNorm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_in_place, AddInPlace);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(describe, Describe);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, Twice);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(own, Own);
