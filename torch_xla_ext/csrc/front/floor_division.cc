#include "torch_xla_ext/csrc/front/floor_division.h"

#include <ATen/ATen.h>

namespace torch_xla {
namespace {

at::Tensor Operand(const at::Tensor& tensor, const at::TensorOptions& options) {
  return tensor.device().is_cpu() ? at::full({}, tensor.item(), options)
                                  : tensor.to(options.dtype());
}

}  // namespace

// c10::div_floor_floating, in which the remainder is exact.
at::Tensor FloorDivided(const at::Tensor& self, const at::Tensor& other) {
  const at::ScalarType dtype = at::result_type(self, other);
  const at::TensorOptions options =
      (self.device().is_cpu() ? other : self)
          .options()
          .dtype(at::isReducedFloatingType(dtype) ? at::kFloat : dtype);
  const at::Tensor a = Operand(self, options), b = Operand(other, options);
  const at::Tensor rest = at::fmod(a, b), ratio = at::div(a, b);
  const at::Tensor is_above =
      at::logical_and(at::ne(rest, 0), at::ne(at::lt(b, 0), at::lt(rest, 0)));
  const at::Tensor quotient =
      at::sub(at::div(at::sub(a, rest), b), is_above.to(a.scalar_type()));
  const at::Tensor floor = at::floor(quotient);
  const at::Tensor whole =
      at::add(floor, at::gt(at::sub(quotient, floor), 0.5).to(a.scalar_type()));
  const at::Tensor zero =
      at::mul(at::sign(ratio), 0);  // its sign is the ratio's
  return at::where(at::eq(b, 0), ratio,
                   at::where(at::eq(quotient, 0), zero, whole))
      .to(dtype);
}

}  // namespace torch_xla
