// XlaGpuQuantizeRows for the CPU.
#include <cmath>

#include "kernels/common/host_floats.h"
#include "kernels/quantize_rows/quantize_rows.h"

namespace torch_xla_ext::quantize_rows {
namespace {

Status QuantizeRowsOnHost(AnyBuffer x, AnyResult quantized, AnyResult scale,
                          const QuantizeRowsParams& params) {
  const int64_t num_columns = x.dim(1);
  const float least = static_cast<float>(params.least_scale);
  VisitFloat(x.dtype(), [&](auto t) {
    using T = decltype(t);
    for (int64_t row = 0; row < x.dim(0); ++row) {
      const T* from = x.data<T>() + row * num_columns;
      auto* to = quantized.data<c10::Float8_e4m3fn>() + row * num_columns;
      float largest = 0;
      for (int64_t i = 0; i < num_columns; ++i) {
        const float size = std::abs(static_cast<float>(from[i]));
        if (!(size <= largest)) largest = size;  // keeps a NaN
        if (std::isnan(largest)) break;
      }
      const float quotient = largest / kLargest;
      const float row_scale = quotient < least ? least : quotient;
      const float inverse = 1 / row_scale;
      for (int64_t i = 0; i < num_columns; ++i) {
        to[i] = FromFloat<c10::Float8_e4m3fn>(static_cast<float>(from[i]) *
                                              inverse);
      }
      scale.data<float>()[row] = row_scale;
    }
  });
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::quantize_rows

XLA_KERNEL_HOST(XlaGpuQuantizeRows, torch_xla_ext::quantize_rows::kQuantizeRows,
                torch_xla_ext::quantize_rows::QuantizeRowsOnHost);
