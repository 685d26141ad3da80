// Inverses, decompositions and distances.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LINEAR_ALGEBRA_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LINEAR_ALGEBRA_H_

#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The upstream kernel never finds a singular matrix: it returned large numbers
// and an info of 0. Its inverses of complex matrices are wrong. Other
// factorizations run on the CPU, too.
inline std::tuple<at::Tensor, at::Tensor> LinalgInvEx(const at::Tensor& self,
                                                      bool check_errors) {
  return OnCpu<at::_ops::linalg_inv_ex>(self, check_errors);
}

// The upstream kernel does not return the factors that the gradient needs.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> LinalgSlogdet(
    const at::Tensor& self) {
  return OnCpu<at::_ops::_linalg_slogdet>(self);
}

// The upstream kernel treats a batch's shapes as those of a single matrix, and
// refuses complex and empty ones. XLA iterates to errors of 1e-7, also in
// float64.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> LinalgSvd(
    const at::Tensor& self, bool full_matrices, bool compute_uv,
    std::optional<std::string_view> driver) {
  if (self.dim() > 2 || self.is_complex() || self.numel() == 0 ||
      self.scalar_type() == at::kDouble) {
    return OnCpu<at::_ops::_linalg_svd>(self, full_matrices, compute_uv,
                                        driver);
  }
  return Upstream::_linalg_svd(self, full_matrices, compute_uv, driver);
}

// The same errors.
inline std::tuple<at::Tensor, at::Tensor> LinalgEigh(const at::Tensor& self,
                                                     std::string_view uplo,
                                                     bool compute_v) {
  if (at::toRealValueType(self.scalar_type()) == at::kDouble) {
    return OnCpu<at::_ops::_linalg_eigh>(self, uplo, compute_v);
  }
  return Upstream::_linalg_eigh(self, uplo, compute_v);
}

// XLA returns NaN instead of an error, keeps the imaginary parts of a diagonal,
// and cannot decompose matrices without elements.
inline at::Tensor Cholesky(const at::Tensor& self, bool upper) {
  return OnCpu<at::_ops::cholesky>(self, upper);
}

// The upstream kernel takes the p-th root even if p is 0 or infinite.
inline at::Tensor PdistForward(const at::Tensor& self, double p) {
  if (p == 0 || std::isinf(p)) return OnCpu<at::_ops::_pdist_forward>(self, p);
  return Upstream::_pdist_forward(self, p);
}

// The upstream kernel does not support empty operands, or broadcasting of
// batches.
inline at::Tensor CdistForward(const at::Tensor& x1, const at::Tensor& x2,
                               double p, std::optional<int64_t> compute_mode) {
  const auto batch = [](const at::Tensor& x) {
    return x.sizes().slice(0, x.dim() - 2);
  };
  if (x1.numel() == 0 || x2.numel() == 0 || batch(x1) != batch(x2) ||
      x1.scalar_type() != x2.scalar_type()) {
    return OnCpu<at::_ops::_cdist_forward>(x1, x2, p, compute_mode);
  }
  return Upstream::_cdist_forward(x1, x2, p, compute_mode);
}

// The upstream kernel refuses complex factors.
inline at::Tensor Addmm(const at::Tensor& self, const at::Tensor& mat1,
                        const at::Tensor& mat2, const at::Scalar& beta,
                        const at::Scalar& alpha) {
  if (!beta.isComplex() && !alpha.isComplex()) {
    return Upstream::addmm(self, mat1, mat2, beta, alpha);
  }
  return at::add(at::mul(self, beta), at::mul(at::mm(mat1, mat2), alpha));
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LINEAR_ALGEBRA_H_
