// Checks of calls that draw random numbers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANDOM_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANDOM_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/Dispatch_v2.h>
#include <c10/util/overflows.h>

#include <optional>

#include "torch_xla_ext/csrc/aten_overrides/kernel_checks.h"

namespace torch_xla_ext::aten_overrides {

inline void CheckMultinomial(const at::Tensor& self, c10::SymInt num_samples,
                             bool replacement) {
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2,
              "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ",
      self.scalar_type());
  TORCH_CHECK(self.size(-1) <= int64_t{1} << 24,
              "number of categories cannot exceed 2^24");
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || num_samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without "
              "replacement");
}

// Whether integers of the dtype can be `number`.
inline void CheckFits(const char* name, const at::Tensor& self,
                      int64_t number) {
  TORCH_CHECK(!self.is_complex(), "random_: not implemented for '",
              self.scalar_type(), "'");
  TORCH_CHECK(self.scalar_type() != at::kBool || number == 0 || number == 1,
              name, " is out of bounds for Bool");
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return;
  TORCH_CHECK(self.scalar_type() != at::kUInt64,
              "\"random_\" not implemented for 'UInt64' on XLA devices; draw "
              "int64, and convert that");
  AT_DISPATCH_V2(
      self.scalar_type(), "random_", AT_WRAP([&] {
        TORCH_CHECK(!c10::overflows<scalar_t>(number, /*strict_unsigned=*/true),
                    name, " is out of bounds for ", self.scalar_type());
      }),
      AT_EXPAND(AT_INTEGRAL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

inline void CheckRandom(at::Tensor& self, int64_t from,
                        std::optional<int64_t> to) {
  TORCH_CHECK(!to || from < *to,
              "random_ expects 'from' to be less than 'to', but got from=",
              from, " >= to=", to.value_or(0));
  CheckFits("from", self, from);
  if (to) CheckFits("to - 1", self, *to - 1);
}

inline void CheckRandomTo(at::Tensor& self, int64_t to) {
  TORCH_CHECK(to > 0,
              "random_ expects 'from' to be less than 'to', but got "
              "from=0 >= to=",
              to);
  CheckFits("to - 1", self, to - 1);
}

inline void CheckUniform(at::Tensor& self, double from, double to) {
  CheckFractions("uniform_", self);
  TORCH_CHECK(from <= to,
              "uniform_ expects to return a [from, to) range, but found from=",
              from, " > to=", to);
}

inline void CheckBernoulliP(const at::Tensor&, double p) {
  TORCH_CHECK(p >= 0 && p <= 1,
              "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

inline void CheckNormal(const at::Tensor& mean, double std) {
  CheckFractions("normal", mean);
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
}

inline void CheckNormal_(at::Tensor& self, double, double std) {
  CheckNormal(self, std);
}

inline void CheckNormalOfDeviation(const at::Tensor& std) {
  TORCH_CHECK(!std.is_complex(),
              "normal expects standard deviation to be non-complex");
  CheckFractions("normal", std);
}

inline void CheckNormalByDeviation(double, const at::Tensor& std) {
  CheckNormalOfDeviation(std);
}

inline void CheckNormalOfTensors(const at::Tensor& mean,
                                 const at::Tensor& std) {
  CheckNormalOfDeviation(std);
  CheckFractions("normal", mean);
}

inline void CheckDropout(const at::Tensor& self, double,
                         std::optional<bool> train) {
  TORCH_CHECK(!train.value_or(true) ||
                  !at::isIntegralType(self.scalar_type(), /*includeBool=*/true),
              "result type Float can't be cast to the desired output type ",
              self.scalar_type());
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANDOM_CHECKS_H_
