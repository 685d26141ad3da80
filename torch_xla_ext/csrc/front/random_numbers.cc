// Interposes on random operators of torch_xla whose distributions differ from
// torch's: native_dropout, which torch.compile makes of dropout, divided by p
// instead of 1 - p; in 16 bits, probabilities were those of 8 random bits, and
// exponential numbers were infinite.
//
// This works because the stock binary calls them through its PLT.
#include <ATen/ATen.h>
#include <ATen/Operators.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/front/stock.h"

namespace torch_xla {

struct XLANativeFunctions {
  using Generator = std::optional<at::Generator>;

  static at::Tensor _copy_from(const at::Tensor& self, const at::Tensor& dst,
                               bool non_blocking);  // the stock binary's
  static at::Tensor bernoulli(const at::Tensor& self, Generator generator);
  static at::Tensor bernoulli(const at::Tensor& self, double p,
                              Generator generator);
  static at::Tensor& bernoulli_(at::Tensor& self, const at::Tensor& p,
                                Generator generator);
  static at::Tensor& exponential_(at::Tensor& self, double lambd,
                                  Generator generator);
  static at::Tensor multinomial(const at::Tensor& self, int64_t num_samples,
                                bool replacement, Generator generator);
  static std::tuple<at::Tensor, at::Tensor> native_dropout(
      const at::Tensor& self, double p, std::optional<bool> train);
  static at::Tensor randperm(int64_t n, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout,
                             std::optional<at::Device> device,
                             std::optional<bool> pin_memory);
  static at::Tensor& uniform_(at::Tensor& self, double from, double to,
                              Generator generator);
};

namespace {

using Generator = XLANativeFunctions::Generator;

// A user's generator runs the operator on the CPU, in the stock function.
bool IsGiven(const Generator& generator) {
  return generator.has_value() && generator->defined();
}

bool Has16Bits(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type());
}

// In [0, 1), with the shape of `like`.
at::Tensor Uniform(const at::Tensor& like) {
  const at::ScalarType dtype =
      like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::rand(like.sizes(), like.options().dtype(dtype));
}

at::Tensor& Assign(at::Tensor& self, const at::Tensor& value) {
  XLANativeFunctions::_copy_from(value.to(self.scalar_type()), self,
                                 /*non_blocking=*/false);
  return self;
}

// The largest number of the dtype, which has 16 bits, below `value`.
template <typename Type>
double NextBelow(double value) {
  Type number(static_cast<float>(value));
  if (static_cast<float>(number) == 0) return 0;
  number.x += value > 0 ? -1 : 1;
  return static_cast<double>(static_cast<float>(number));
}

double NextBelow(double value, at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return NextBelow<at::Half>(value);
    case at::kBFloat16:
      return NextBelow<at::BFloat16>(value);
    case at::kFloat:
      return std::nextafter(static_cast<float>(value), -INFINITY);
    default:
      return std::nextafter(value, -INFINITY);
  }
}

}  // namespace

at::Tensor XLANativeFunctions::bernoulli(const at::Tensor& self,
                                         Generator generator) {
  if (Has16Bits(self) && !IsGiven(generator)) {
    return at::lt(Uniform(self), self.to(at::kFloat)).to(self.scalar_type());
  }
  static auto* const stock = Stock<at::Tensor(const at::Tensor&, Generator)>(
      nullptr,
      "_ZN9torch_xla18XLANativeFunctions9bernoulliERKN2at6TensorESt8optiona"
      "lINS1_9GeneratorEE");
  return stock(self, generator);
}

at::Tensor XLANativeFunctions::bernoulli(const at::Tensor& self, double p,
                                         Generator generator) {
  if (Has16Bits(self) && !IsGiven(generator)) {
    return at::lt(Uniform(self), p).to(self.scalar_type());
  }
  static auto* const stock =
      Stock<at::Tensor(const at::Tensor&, double, Generator)>(
          nullptr,
          "_ZN9torch_xla18XLANativeFunctions9bernoulliERKN2at6TensorEdSt8option"
          "alINS1_9GeneratorEE");
  return stock(self, p, generator);
}

at::Tensor& XLANativeFunctions::bernoulli_(at::Tensor& self,
                                           const at::Tensor& p,
                                           Generator generator) {
  if (Has16Bits(p) && !IsGiven(generator)) {
    return Assign(self, at::lt(Uniform(self), p.to(at::kFloat)));
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::bernoulli_,
            "_ZN9torch_xla18XLANativeFunctions10bernoulli_ERN2at6TensorERKS2_St"
            "8optionalINS1_9GeneratorEE");
  return stock(self, p, generator);
}

// The stock function has no numbers below 1e-5: whoever samples by dividing
// probabilities by them never gets a rare token.
at::Tensor& XLANativeFunctions::exponential_(at::Tensor& self, double lambd,
                                             Generator generator) {
  if (self.is_floating_point() && !IsGiven(generator)) {
    TORCH_CHECK(lambd > 0, "exponential_ expects lambda > 0.0, but found ",
                lambd);
    const at::Tensor uniform = Uniform(self);
    const double smallest = uniform.scalar_type() == at::kDouble
                                ? std::ldexp(1.0, -53)
                                : std::ldexp(1.0, -24);
    const at::Tensor standard =
        at::neg(at::log1p(at::neg(uniform))).clamp_min(smallest);
    return Assign(self, at::div(standard, lambd));
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::exponential_,
            "_ZN9torch_xla18XLANativeFunctions12exponential_ERN2at6TensorEdSt8o"
            "ptionalINS1_9GeneratorEE");
  return stock(self, lambd, generator);
}

// The stock function adds probabilities in their own dtype, and draws the first
// category, even an impossible one, where the random number is 0. It draws
// without replacement on the CPU. These are torch's ways of doing so.
at::Tensor XLANativeFunctions::multinomial(const at::Tensor& self,
                                           int64_t num_samples,
                                           bool replacement,
                                           Generator generator) {
  if (IsGiven(generator) || num_samples < 1) {
    static auto* const stock =
        Stock(&XLANativeFunctions::multinomial,
              "_ZN9torch_xla18XLANativeFunctions11multinomialERKN2at6TensorElbS"
              "t8optionalINS1_9GeneratorEE");
    return stock(self, num_samples, replacement, generator);
  }
  const at::Tensor weights = Has16Bits(self) ? self.to(at::kFloat) : self;
  if (num_samples == 1 || !replacement) {
    at::Tensor times = at::empty_like(weights);
    exponential_(times, /*lambd=*/1, std::nullopt);
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

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::native_dropout(
    const at::Tensor& self, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {self.clone(), at::ones_like(self, at::kBool)};
  }
  const at::Tensor is_kept = at::lt(Uniform(self), 1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {at::mul(at::mul(self, is_kept), scale), is_kept};
}

// The stock function's numbers do not depend on the seed.
at::Tensor XLANativeFunctions::randperm(int64_t n,
                                        std::optional<at::ScalarType> dtype,
                                        std::optional<at::Layout> layout,
                                        std::optional<at::Device> device,
                                        std::optional<bool> pin_memory) {
  if (n > 0 && dtype == at::kLong && !layout.has_value() &&
      !pin_memory.value_or(false)) {
    at::Tensor keys =
        at::empty({n}, at::TensorOptions().dtype(dtype).device(device));
    return at::argsort(keys.random_());
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::randperm,
            "_ZN9torch_xla18XLANativeFunctions8randpermElSt8optionalIN3c1010Sca"
            "larTypeEES1_INS2_6LayoutEES1_INS2_6DeviceEES1_IbE");
  return stock(n, dtype, layout, device, pin_memory);
}

// The stock function rounds numbers up to `to`, which is not one of them.
at::Tensor& XLANativeFunctions::uniform_(at::Tensor& self, double from,
                                         double to, Generator generator) {
  const bool is_stock = !Has16Bits(self) && from == 0 && to == 1;
  if (self.is_floating_point() && from < to && !is_stock &&
      !IsGiven(generator)) {
    const double last = std::max(NextBelow(to, self.scalar_type()), from);
    const at::Tensor numbers = at::add(at::mul(Uniform(self), to - from), from);
    return Assign(self, numbers.clamp_max(last));
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::uniform_,
            "_ZN9torch_xla18XLANativeFunctions8uniform_ERN2at6TensorEddSt8optio"
            "nalINS1_9GeneratorEE");
  return stock(self, from, to, generator);
}

}  // namespace torch_xla
