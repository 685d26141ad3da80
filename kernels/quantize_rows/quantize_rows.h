// XlaGpuQuantizeRows: rounds the rows of a matrix to F8E4M3FN, each with a
// scale of its own.
//
// The scale of a row is its largest absolute value divided by 448, but at least
// least_scale. Elements become x * (1 / scale), rounded to nearest even and
// saturated at ±448, as in vLLM's dynamic_per_token_scaled_fp8_quant. The scale
// of a row with a NaN is NaN.
#ifndef KERNELS_QUANTIZE_ROWS_QUANTIZE_ROWS_H_
#define KERNELS_QUANTIZE_ROWS_QUANTIZE_ROWS_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::quantize_rows {

inline constexpr Signature kQuantizeRows = ParseSignature(
    "XlaGpuQuantizeRows(x: T[num_rows, num_columns]) -> "
    "(quantized: F8E4M3FN[num_rows, num_columns], scale: F32[num_rows]) "
    "where T: F16 | BF16 | F32");

struct QuantizeRowsParams {
  double least_scale;

  static constexpr auto Fields() {
    return MakeFields(Field("least_scale", &QuantizeRowsParams::least_scale));
  }
};

inline constexpr float kLargest = 448;

}  // namespace torch_xla_ext::quantize_rows

#endif  // KERNELS_QUANTIZE_ROWS_QUANTIZE_ROWS_H_
