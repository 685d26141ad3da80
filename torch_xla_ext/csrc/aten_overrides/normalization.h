// Batch normalization, from which PyTorch composes group and instance norms.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_NORMALIZATION_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_NORMALIZATION_H_

#include <ATen/NativeFunctions.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/normalization_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The input, in the type in which PyTorch computes (16-bit floats in float32).
// It is normalized along all dimensions but the second, the channels.
struct Channels {
  explicit Channels(const at::Tensor& input)
      : type(Has16Bits(input) ? at::kFloat : input.scalar_type()),
        shape(input.dim(), 1) {
    shape[1] = input.size(1);
    for (int64_t i = 0; i < input.dim(); ++i) {
      if (i != 1) others.push_back(i);
    }
    count = input.numel() / std::max<int64_t>(input.size(1), 1);
  }
  // A tensor of one number per channel, to compute with `input`.
  at::Tensor Spread(const at::Tensor& tensor) const {
    return at::view_copy(tensor.to(type), shape);
  }
  at::Tensor Sum(const at::Tensor& tensor) const {
    return at::sum(tensor, others);
  }

  at::ScalarType type;
  std::vector<int64_t> shape;
  std::vector<int64_t> others;
  int64_t count;  // numbers per channel
};

// The size along a dimension of a part of the numbers that stands for all in
// ShiftedMoments.
inline int64_t SizeOfPart(int64_t size) {
  return std::max(size / 64, std::min<int64_t>(size, 32));
}

// The mean of `input` along `dims`, and the variance divided by n; `dims` have
// size 1 in both.
//
// The upstream kernel's E[x^2] - E[x]^2 loses all digits where the mean is far
// above the deviation. Subtracting the mean first costs another pass over the
// input, half as much again in time. One pass does it after subtracting the
// mean K of a part of the numbers, n_K of n: K is at most sqrt(n / n_K)
// deviations off. See Chan, Golub and LeVeque, "Algorithms for computing the
// sample variance" (1983).
inline std::tuple<at::Tensor, at::Tensor> ShiftedMoments(
    const at::Tensor& input, const at::Tensor& part, at::IntArrayRef dims) {
  const auto mean_of = [dims](const at::Tensor& tensor) {
    return at::mean(tensor, dims, /*keepdim=*/true);
  };
  if (input.numel() == 0) return {mean_of(input), mean_of(input)};
  const at::Tensor shift = mean_of(part);
  const at::Tensor shifted = at::sub(input, shift);
  const at::Tensor mean = mean_of(shifted);
  const at::Tensor variance =
      at::sub(mean_of(at::mul(shifted, shifted)), at::mul(mean, mean));
  return {at::add(shift, mean), at::clamp_min(variance, 0)};
}

// The mean of each channel, and its variance divided by n. The part that stands
// for all is the first sample of a batch; for a single sample, as in group and
// instance norms, the first numbers.
inline std::tuple<at::Tensor, at::Tensor> Moments(const at::Tensor& input,
                                                  const Channels& channels) {
  const bool is_batch = input.size(0) != 1 || input.dim() < 3;
  const at::Tensor part = is_batch
                              ? input.slice(0, 0, 1)
                              : input.slice(2, 0, SizeOfPart(input.size(2)));
  const auto [mean, variance] = ShiftedMoments(input, part, channels.others);
  const at::IntArrayRef shape(channels.shape[1]);
  return {at::view_copy(mean, shape), at::view_copy(variance, shape)};
}

inline at::Tensor Normalized(const at::Tensor& input, const Channels& channels,
                             const at::Tensor& mean, const at::Tensor& invstd,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias) {
  at::Tensor result =
      at::mul(at::sub(input, channels.Spread(mean)), channels.Spread(invstd));
  if (IsGiven(weight)) result = at::mul(result, channels.Spread(*weight));
  if (IsGiven(bias)) result = at::add(result, channels.Spread(*bias));
  return result;
}

// Moves `running` towards `value` by `momentum`.
inline void Update(const at::Tensor& running, const at::Tensor& value,
                   double momentum) {
  const at::Tensor updated =
      at::add(at::mul(running, 1 - momentum), at::mul(value, momentum));
  Upstream::_copy_from(updated.to(running.scalar_type()), running,
                       /*non_blocking=*/false);
}

// PyTorch's native_batch_norm.
// The upstream kernel's running variance is divided by n, PyTorch's by n - 1.
inline ThreeTensors NativeBatchNorm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training,
    double momentum, double eps) {
  const Channels channels(input);
  const at::Tensor x = input.to(channels.type);
  if (!training) {
    TORCH_CHECK(IsGiven(running_mean) && IsGiven(running_var),
                "batch_norm: in evaluation, running_mean and running_var must "
                "be given");
    const at::Tensor invstd =
        at::rsqrt(at::add(running_var->to(channels.type), eps));
    const at::Tensor none = at::empty({0}, x.options());
    return {Normalized(x, channels, *running_mean, invstd, weight, bias)
                .to(input.scalar_type()),
            none, none};
  }
  const auto [mean, variance] = Moments(x, channels);
  const at::Tensor invstd = at::rsqrt(at::add(variance, eps));
  if (IsGiven(running_mean)) Update(*running_mean, mean, momentum);
  if (IsGiven(running_var)) {
    const double n = static_cast<double>(channels.count);
    Update(*running_var, n > 1 ? at::mul(variance, n / (n - 1)) : variance,
           momentum);
  }
  return {Normalized(x, channels, mean, invstd, weight, bias)
              .to(input.scalar_type()),
          mean, invstd};
}

inline ThreeTensors NativeBatchNormLegit(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, at::Tensor& running_mean,
    at::Tensor& running_var, bool training, double momentum, double eps) {
  return NativeBatchNorm(input, weight, bias, running_mean, running_var,
                         training, momentum, eps);
}

inline ThreeTensors NativeBatchNormLegitNoStats(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, bool training, double momentum,
    double eps) {
  return NativeBatchNorm(input, weight, bias, std::nullopt, std::nullopt,
                         training, momentum, eps);
}

// PyTorch's composition reshapes whatever it gets.
inline void CheckGroups(const at::Tensor& input,
                        const std::optional<at::Tensor>& weight,
                        const std::optional<at::Tensor>& bias, int64_t n,
                        int64_t c, int64_t hxw, int64_t group) {
  TORCH_CHECK(group > 0 && c % group == 0,
              "group_norm: expected a number of channels that is divisible by "
              "num_groups, but got ",
              c, " and ", group);
  TORCH_CHECK(input.numel() == n * c * hxw,
              "group_norm: expected an input of N * C * HxW elements, but got "
              "sizes ",
              input.sizes(), " for N=", n, ", C=", c, ", HxW=", hxw);
  for (const auto* const parameter : {&weight, &bias}) {
    if (!IsGiven(*parameter)) continue;
    TORCH_CHECK((*parameter)->sizes() == at::IntArrayRef(c),
                "group_norm: expected parameters of size ", c, ", but got ",
                (*parameter)->sizes());
  }
}

// PyTorch's composition promotes 16-bit inputs to the dtype of float32
// parameters, and rounds before it applies parameters of 16 bits.
inline ThreeTensors NativeGroupNorm(const at::Tensor& input,
                                    const std::optional<at::Tensor>& weight,
                                    const std::optional<at::Tensor>& bias,
                                    int64_t n, int64_t c, int64_t hxw,
                                    int64_t group, double eps) {
  CheckFractions("group_norm", input);
  CheckParameters("group_norm", input, weight, bias);
  CheckGroups(input, weight, bias, n, c, hxw, group);
  if (!Has16Bits(input)) {
    return at::native::math_group_norm(input, weight, bias, n, c, hxw, group,
                                       eps);
  }
  const auto in_float32 = [](const std::optional<at::Tensor>& parameter) {
    return IsGiven(parameter) ? std::optional(parameter->to(at::kFloat))
                              : std::nullopt;
  };
  const auto [result, mean, rstd] =
      at::native::math_group_norm(input.to(at::kFloat), in_float32(weight),
                                  in_float32(bias), n, c, hxw, group, eps);
  const std::optional<at::Tensor>& parameter = IsGiven(weight) ? weight : bias;
  const at::ScalarType type =
      IsGiven(parameter) ? parameter->scalar_type() : input.scalar_type();
  return {result.to(input.scalar_type()), mean.to(type), rstd.to(type)};
}

// The upstream kernel computes only gradients in training, and fails in
// evaluation, where there are no statistics of the batch.
inline ThreeTensors NativeBatchNormBackward(
    const at::Tensor& grad_out, const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    const std::optional<at::Tensor>& save_mean,
    const std::optional<at::Tensor>& save_invstd, bool train, double eps,
    std::array<bool, 3> output_mask) {
  TORCH_CHECK(train ? IsGiven(save_mean) && IsGiven(save_invstd)
                    : IsGiven(running_mean) && IsGiven(running_var),
              "native_batch_norm_backward: expected ",
              train ? "save_mean and save_invstd in training"
                    : "running_mean and running_var in evaluation");
  const Channels channels(input);
  const at::Tensor grad = grad_out.to(channels.type);
  const at::Tensor mean = (train ? *save_mean : *running_mean);
  const at::Tensor invstd =
      train ? *save_invstd
            : at::rsqrt(at::add(running_var->to(channels.type), eps));
  const at::Tensor normalized =
      Normalized(input.to(channels.type), channels, mean, invstd, std::nullopt,
                 std::nullopt);
  const at::Tensor grad_bias = channels.Sum(grad);
  const at::Tensor grad_weight = channels.Sum(at::mul(grad, normalized));
  ThreeTensors gradients;
  if (output_mask[0]) {
    at::Tensor centered = grad;
    if (train) {  // the batch's statistics depend on the input, too
      const double n = static_cast<double>(channels.count);
      centered = at::sub(
          at::sub(grad, channels.Spread(at::div(grad_bias, n))),
          at::mul(normalized, channels.Spread(at::div(grad_weight, n))));
    }
    const at::Tensor scale =
        IsGiven(weight) ? at::mul(invstd, weight->to(channels.type)) : invstd;
    std::get<0>(gradients) =
        at::mul(centered, channels.Spread(scale)).to(input.scalar_type());
  }
  const at::ScalarType type =
      IsGiven(weight) ? weight->scalar_type() : channels.type;
  if (output_mask[1]) std::get<1>(gradients) = grad_weight.to(type);
  if (output_mask[2]) std::get<2>(gradients) = grad_bias.to(type);
  return gradients;
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_NORMALIZATION_H_
