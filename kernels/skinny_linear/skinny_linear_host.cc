// XlaGpuSkinnyLinear and XlaGpuSkinnySwiglu for the CPU.
#include <cmath>
#include <vector>

#include "kernels/common/host_attention.h"
#include "kernels/common/host_floats.h"
#include "kernels/skinny_linear/skinny_linear.h"

namespace torch_xla_ext::skinny_linear {
namespace {

// Calls write(row, column, product) for each row of x and of w.
template <typename T, typename Writer>
void Multiply(AnyBuffer x, const T* w, int64_t n, const Writer& write) {
  const int64_t rows = x.dim(0), k = x.dim(1);
  std::vector<float> inputs(rows * k), weights(k);
  ToFloats(x.data<T>(), rows * k, inputs.data());
  for (int64_t column = 0; column < n; ++column) {
    ToFloats(w + column * k, k, weights.data());
    for (int64_t row = 0; row < rows; ++row) {
      write(row, column, Dot(weights.data(), inputs.data() + row * k, k));
    }
  }
}

Status SkinnyLinear(AnyBuffer x, AnyBuffer w, AnyResult out) {
  VisitFloat(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const int64_t n = w.dim(0);
    Multiply(x, w.data<T>(), n, [&](int64_t row, int64_t column, float sum) {
      out.data<T>()[row * n + column] = FromFloat<T>(sum);
    });
  });
  return Status::Ok();
}

Status SkinnySwiglu(AnyBuffer x, AnyBuffer w, AnyResult out) {
  VisitFloat(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const int64_t groups = w.dim(0), n = w.dim(2), k = x.dim(1);
    std::vector<float> gate(x.dim(0) * n);
    for (int64_t group = 0; group < groups; ++group) {
      const T* weights = w.data<T>() + group * 2 * n * k;
      Multiply(x, weights, n, [&](int64_t row, int64_t column, float sum) {
        gate[row * n + column] = sum / (1 + std::exp(-sum));
      });
      Multiply(x, weights + n * k, n,
               [&](int64_t row, int64_t column, float sum) {
                 out.data<T>()[(row * groups + group) * n + column] =
                     FromFloat<T>(gate[row * n + column] * sum);
               });
    }
  });
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::skinny_linear

XLA_KERNEL_HOST(XlaGpuSkinnyLinear, torch_xla_ext::skinny_linear::kSkinnyLinear,
                torch_xla_ext::skinny_linear::SkinnyLinear);
XLA_KERNEL_HOST(XlaGpuSkinnySwiglu, torch_xla_ext::skinny_linear::kSkinnySwiglu,
                torch_xla_ext::skinny_linear::SkinnySwiglu);
