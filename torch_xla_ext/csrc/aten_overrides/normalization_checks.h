// Checks of normalizations: functions of an operator's arguments.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_NORMALIZATION_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_NORMALIZATION_CHECKS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

#include "torch_xla_ext/csrc/aten_overrides/kernel_checks.h"

namespace torch_xla_ext::aten_overrides {

// The parameters of a normalization: 16-bit inputs may have float32 parameters.
inline void CheckParameter(const char* name, const at::Tensor& input,
                           const std::optional<at::Tensor>& parameter) {
  if (!IsGiven(parameter)) return;
  const bool is_wider = at::isReducedFloatingType(input.scalar_type()) &&
                        parameter->scalar_type() == at::kFloat;
  TORCH_CHECK(is_wider || parameter->scalar_type() == input.scalar_type(), name,
              ": expected parameters of dtype ", input.scalar_type(),
              ", but got ", parameter->scalar_type());
}

inline void CheckParameters(const char* name, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias) {
  CheckParameter(name, input, weight);
  CheckParameter(name, input, bias);
  if (IsGiven(weight) && IsGiven(bias)) {
    CheckSameType(name, *weight, *bias);
  }
}

inline void CheckLayerNorm(const at::Tensor& input, c10::SymIntArrayRef,
                           const std::optional<at::Tensor>& weight,
                           const std::optional<at::Tensor>& bias) {
  CheckParameters("layer_norm", input, weight, bias);
}

inline void CheckBatchNorm(const at::Tensor& input,
                           const std::optional<at::Tensor>& weight,
                           const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& mean,
                           const std::optional<at::Tensor>& var) {
  TORCH_CHECK_VALUE(IsGiven(mean) == IsGiven(var),
                    "running_mean and running_var must either both be None or "
                    "neither be None");
  const int64_t channels = input.size(1);
  const auto check = [&](const std::optional<at::Tensor>& parameter,
                         bool has_size) {
    TORCH_CHECK(has_size,
                "batch_norm: expected statistics and parameters of size ",
                channels, ", but got ", parameter->sizes());
    CheckParameter("batch_norm", input, parameter);
  };
  for (const auto* const parameter : {&weight, &bias}) {
    if (!IsGiven(*parameter)) continue;
    check(*parameter, (*parameter)->numel() == channels);
  }
  for (const auto* const statistics : {&mean, &var}) {
    if (!IsGiven(*statistics)) continue;
    check(*statistics, (*statistics)->sizes() == at::IntArrayRef(channels));
  }
}

inline void CheckBatchNormOfStatistics(const at::Tensor& input,
                                       const std::optional<at::Tensor>& weight,
                                       const std::optional<at::Tensor>& bias,
                                       const at::Tensor& mean,
                                       const at::Tensor& var) {
  CheckBatchNorm(input, weight, bias, mean, var);
}

inline void CheckBatchNormOfBatch(const at::Tensor& input,
                                  const std::optional<at::Tensor>& weight,
                                  const std::optional<at::Tensor>& bias) {
  CheckBatchNorm(input, weight, bias, std::nullopt, std::nullopt);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_NORMALIZATION_CHECKS_H_
