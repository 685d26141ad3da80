// torch._scaled_mm, the product of two matrices of 8-bit floats.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SCALED_MM_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SCALED_MM_H_

#include <optional>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

inline bool HasTypeOfFloat8(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat8_e4m3fn ||
         tensor.scalar_type() == at::kFloat8_e5m2;
}

// The product of matrices [m, k] and [k, n], in float32. The operands are not
// converted, because XLA:GPU gives a dot of 8-bit floats to cuBLASLt, which
// uses tensor cores. A dot of converted operands would be rewritten to the same
// call, but autotuned at length.
inline at::Tensor ProductOfFloat8(const at::Tensor& self,
                                  const at::Tensor& mat2) {
  using torch_xla::bridge::GetXlaTensor;
  if (self.size(1) == 0) {  // XLA:GPU would leave the result uninitialized
    return at::zeros({self.size(0), mat2.size(1)},
                     self.options().dtype(at::kFloat));
  }
  // The other dot has the default precision, with cuBLASLt's fast accumulation.
  if (static_cast<int>(torch_xla::XlaHelpers::mat_mul_precision()) != 0) {
    return at::mm(self.to(at::kFloat), mat2.to(at::kFloat));
  }
  return torch_xla::bridge::AtenFromXlaTensor(
      torch_xla::tensor_methods::xla_dot_general(
          GetXlaTensor(self), GetXlaTensor(mat2),
          {/*lhs_contracting=*/{1}, /*rhs_contracting=*/{0}, /*lhs_batch=*/{},
           /*rhs_batch=*/{}},
          /*preferred_element_type=*/at::kFloat));
}

inline void CheckScaledMm(const at::Tensor& self, const at::Tensor& mat2,
                          const at::Tensor& scale_a, const at::Tensor& scale_b,
                          const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(
      self.dim() == 2 && mat2.dim() == 2 && self.size(1) == mat2.size(0),
      "torch._scaled_mm: expected matrices [m, k] and [k, n], but got ",
      self.sizes(), " and ", mat2.sizes());
  TORCH_CHECK(HasTypeOfFloat8(self) && HasTypeOfFloat8(mat2),
              "torch._scaled_mm: expected matrices of float8_e4m3fn or "
              "float8_e5m2, but got ",
              self.scalar_type(), " and ", mat2.scalar_type(),
              "; convert them with .to(torch.float8_e4m3fn)");
  const bool is_one_scale = scale_a.numel() == 1 && scale_b.numel() == 1;
  const bool is_of_rows = scale_a.sizes().equals({self.size(0), 1}) &&
                          scale_b.sizes().equals({1, mat2.size(1)});
  TORCH_CHECK(
      scale_a.scalar_type() == at::kFloat &&
          scale_b.scalar_type() == at::kFloat && (is_one_scale || is_of_rows),
      "torch._scaled_mm: expected scales of float32, either one number "
      "for each matrix, or scale_a [",
      self.size(0), ", 1] and scale_b [1, ", mat2.size(1), "], but got ",
      scale_a.scalar_type(), scale_a.sizes(), " and ", scale_b.scalar_type(),
      scale_b.sizes(), "; scales of blocks are not supported on XLA devices");
  TORCH_CHECK(!bias.has_value() || bias->sizes().equals({mat2.size(1)}),
              "torch._scaled_mm: expected a bias [", mat2.size(1),
              "], but got ",
              bias.has_value() ? bias->sizes() : at::IntArrayRef());
}

// Upstream torch_xla has no kernel, and copies the operands to the CPU.
inline at::Tensor ScaledMm(const at::Tensor& self, const at::Tensor& mat2,
                           const at::Tensor& scale_a, const at::Tensor& scale_b,
                           const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& scale_result,
                           std::optional<at::ScalarType> out_dtype,
                           bool use_fast_accum) {
  CheckScaledMm(self, mat2, scale_a, scale_b, bias);
  if (scale_result.has_value()) {
    return OnCpu<at::_ops::_scaled_mm>(self, mat2, scale_a, scale_b, bias,
                                       scale_result, out_dtype, use_fast_accum);
  }
  at::Tensor result = ProductOfFloat8(self, mat2);
  if (scale_a.numel() == 1 && scale_b.numel() == 1) {
    // A single factor, which XLA:GPU passes to cuBLASLt.
    result = at::mul(result, at::mul(AsScalar(scale_a), AsScalar(scale_b)));
  } else {
    result = at::mul(at::mul(result, scale_a), scale_b);
  }
  if (bias.has_value()) result = at::add(result, bias->to(at::kFloat));
  return result.to(out_dtype.value_or(self.scalar_type()));
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SCALED_MM_H_
