// Random numbers with PyTorch's distributions. The upstream kernel of
// native_dropout, which torch.compile uses for dropout, divides by p instead of
// 1 - p; and in 16 bits, upstream's probabilities have only 8 random bits, and
// exponential numbers are infinite.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANDOM_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANDOM_H_

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

using Generator = std::optional<at::Generator>;

// A user's generator runs the operator on the CPU, in the upstream kernel.
inline bool IsGiven(const Generator& generator) {
  return generator.has_value() && generator->defined();
}

// Uniform random numbers in [0, 1), with the shape of `like`.
inline at::Tensor UniformLike(const at::Tensor& like) {
  const at::ScalarType dtype =
      like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::rand(like.sizes(), like.options().dtype(dtype));
}

inline at::Tensor& Assign(at::Tensor& self, const at::Tensor& value) {
  Upstream::_copy_from(value.to(self.scalar_type()), self,
                       /*non_blocking=*/false);
  return self;
}

// The largest number of the dtype, which has 16 bits, below `value`.
template <typename Type>
double NextBelow16(double value) {
  Type number(static_cast<float>(value));
  if (static_cast<float>(number) == 0) return 0;
  number.x += value > 0 ? -1 : 1;
  return static_cast<double>(static_cast<float>(number));
}

inline double NextBelow(double value, at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return NextBelow16<at::Half>(value);
    case at::kBFloat16:
      return NextBelow16<at::BFloat16>(value);
    case at::kFloat:
      return std::nextafter(static_cast<float>(value), -INFINITY);
    default:
      return std::nextafter(value, -INFINITY);
  }
}

inline at::Tensor Bernoulli(const at::Tensor& self, Generator generator) {
  if (Has16Bits(self) && !IsGiven(generator)) {
    return at::lt(UniformLike(self), self.to(at::kFloat))
        .to(self.scalar_type());
  }
  return Upstream::bernoulli(self, generator);
}

inline at::Tensor BernoulliP(const at::Tensor& self, double p,
                             Generator generator) {
  TORCH_CHECK(!self.is_complex(),
              "bernoulli: not implemented for complex numbers");
  // The upstream kernel converts p to the dtype: of integers, all were 0.
  if ((Has16Bits(self) || !self.is_floating_point()) && !IsGiven(generator)) {
    return at::lt(UniformLike(self), p).to(self.scalar_type());
  }
  return Upstream::bernoulli(self, p, generator);
}

inline at::Tensor& Bernoulli_(at::Tensor& self, const at::Tensor& p,
                              Generator generator) {
  if (Has16Bits(p) && !IsGiven(generator)) {
    return Assign(self, at::lt(UniformLike(self), p.to(at::kFloat)));
  }
  return Upstream::bernoulli_(self, p, generator);
}

// The upstream kernel returns no numbers below 1e-5: sampling that divides
// probabilities by them would never choose a rare token.
inline at::Tensor& Exponential_(at::Tensor& self, double lambd,
                                Generator generator) {
  if (!self.is_floating_point() || IsGiven(generator)) {
    return Upstream::exponential_(self, lambd, generator);
  }
  TORCH_CHECK(lambd > 0, "exponential_ expects lambda > 0.0, but found ",
              lambd);
  const at::Tensor uniform = UniformLike(self);
  const double smallest =
      std::ldexp(1.0, uniform.scalar_type() == at::kDouble ? -53 : -24);
  const at::Tensor standard =
      at::neg(at::log1p(at::neg(uniform))).clamp_min(smallest);
  return Assign(self, at::div(standard, lambd));
}

// The upstream kernel adds probabilities in their own dtype, and draws the
// first category, even an impossible one, where the random number is 0. It
// draws without replacement on the CPU. These are PyTorch's algorithms.
inline at::Tensor Multinomial(const at::Tensor& self, int64_t num_samples,
                              bool replacement, Generator generator) {
  if (IsGiven(generator) || num_samples < 1) {
    return Upstream::multinomial(self, num_samples, replacement, generator);
  }
  const at::Tensor weights = Has16Bits(self) ? self.to(at::kFloat) : self;
  if (num_samples == 1 || !replacement) {
    at::Tensor times = at::empty_like(weights);
    Exponential_(times, /*lambd=*/1, std::nullopt);
    const at::Tensor rates = at::div(weights, times);
    return num_samples == 1 ? at::argmax(rates, -1, /*keepdim=*/true)
                            : std::get<1>(at::topk(rates, num_samples));
  }
  const at::Tensor sums = at::cumsum(weights, /*dim=*/-1);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.back() = num_samples;
  const at::Tensor drawn = at::mul(at::rand(sizes, sums.options()),
                                   sums.narrow(-1, sums.size(-1) - 1, 1));
  return at::sum(at::le(sums.unsqueeze(-1), drawn.unsqueeze(-2)), /*dim=*/{-2},
                 /*keepdim=*/false, at::kLong);
}

inline std::tuple<at::Tensor, at::Tensor> NativeDropout(
    const at::Tensor& self, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {self.clone(), at::ones_like(self, at::kBool)};
  }
  const at::Tensor is_kept = at::lt(UniformLike(self), 1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {at::mul(at::mul(self, is_kept), scale), is_kept};
}

// The upstream kernel's numbers do not depend on the seed.
inline at::Tensor Randperm(int64_t n, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout,
                           std::optional<at::Device> device,
                           std::optional<bool> pin_memory) {
  TORCH_CHECK(n >= 0, "randperm: n must not be negative, but is ", n);
  if (n > 0 && dtype == at::kLong && !layout.has_value() &&
      !pin_memory.value_or(false)) {
    at::Tensor keys =
        at::empty({n}, at::TensorOptions().dtype(dtype).device(device));
    return at::argsort(keys.random_());
  }
  return Upstream::randperm(n, dtype, layout, device, pin_memory);
}

// The upstream kernel rounds some numbers up to `to`, which must not be drawn.
inline at::Tensor& Uniform_(at::Tensor& self, double from, double to,
                            Generator generator) {
  const bool is_upstream = !Has16Bits(self) && from == 0 && to == 1;
  if (is_upstream || !self.is_floating_point() || from >= to ||
      IsGiven(generator)) {
    return Upstream::uniform_(self, from, to, generator);
  }
  const double last = std::max(NextBelow(to, self.scalar_type()), from);
  const at::Tensor numbers =
      at::add(at::mul(UniformLike(self), to - from), from);
  return Assign(self, numbers.clamp_max(last));
}

// The upstream kernel returns integers for integers.
inline at::Tensor NativeDropoutBackward(const at::Tensor& grad_output,
                                        const at::Tensor& mask, double scale) {
  return at::mul(grad_output, at::mul(mask.to(grad_output.dtype()), scale));
}

// The upstream kernel does not broadcast the two to each other.
inline at::Tensor NormalOfTensors(const at::Tensor& mean, const at::Tensor& std,
                                  Generator generator) {
  const std::vector<int64_t> sizes = at::infer_size(mean.sizes(), std.sizes());
  return Upstream::normal(at::expand_copy(mean, sizes),
                          at::expand_copy(std, sizes), generator);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANDOM_H_
