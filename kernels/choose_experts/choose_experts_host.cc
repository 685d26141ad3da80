// XlaGpuChooseExperts for the CPU.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/choose_experts/choose_experts.h"
#include "kernels/common/host_floats.h"

namespace torch_xla_ext::choose_experts {
namespace {

// Replaces logits by scores.
void Score(bool sigmoid, std::vector<float>* values) {
  if (sigmoid) {
    for (float& value : *values) value = 1 / (1 + std::exp(-value));
    return;
  }
  const float max = *std::max_element(values->begin(), values->end());
  float sum = 0;
  for (float& value : *values) {
    value = std::exp(value - max);
    sum += value;
  }
  for (float& value : *values) value /= sum;
}

// The indices of the `count` largest values; of equal values, the first comes
// first.
std::vector<int64_t> Largest(const std::vector<float>& values, int64_t count) {
  std::vector<int64_t> numbers(values.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::stable_sort(numbers.begin(), numbers.end(),
                   [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  numbers.resize(count);
  return numbers;
}

// Sets the ranks of groups that are not chosen to -inf.
void KeepGroups(bool has_bias, const ChooseExpertsParams& params,
                std::vector<float>* ranks) {
  const int64_t size = ranks->size() / params.num_groups;
  std::vector<float> best(params.num_groups);
  for (int64_t g = 0; g < params.num_groups; ++g) {
    std::vector<float> group(ranks->begin() + g * size,
                             ranks->begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    best[g] = has_bias && size > 1 ? group[0] + group[1] : group[0];
  }
  std::vector<bool> is_kept(params.num_groups, false);
  for (int64_t g : Largest(best, params.top_groups)) is_kept[g] = true;
  for (size_t i = 0; i < ranks->size(); ++i) {
    if (!is_kept[i / size]) (*ranks)[i] = -INFINITY;
  }
}

Status ChooseOnHost(AnyBuffer logits, std::optional<Buffer<F32, 1>> bias,
                    std::optional<Buffer<PRED, 1>> mask, Result<F32, 2> weights,
                    Result<S32, 2> chosen, const ChooseExpertsParams& params) {
  const int64_t experts = logits.dim(1), top_k = params.top_k;
  XLA_KERNEL_RETURN_IF_ERROR(CheckParams(experts, params));
  const float scaling = static_cast<float>(params.scaling);
  VisitFloat(logits.dtype(), [&](auto t) {
    using T = decltype(t);
    std::vector<float> scores(experts);
    for (int64_t row = 0; row < logits.dim(0); ++row) {
      if (mask.has_value() && !mask->data()[row]) {
        std::fill_n(weights.data() + row * top_k, top_k, 0.0f);
        std::fill_n(chosen.data() + row * top_k, top_k,
                    static_cast<int32_t>(experts));
        continue;
      }
      ToFloats(logits.data<T>() + row * experts, experts, scores.data());
      Score(params.sigmoid, &scores);
      std::vector<float> ranks = scores;
      for (int64_t i = 0; bias.has_value() && i < experts; ++i) {
        ranks[i] += bias->data()[i];
      }
      if (params.num_groups > 1) KeepGroups(bias.has_value(), params, &ranks);
      const std::vector<int64_t> numbers = Largest(ranks, top_k);
      float sum = 0;
      for (int64_t number : numbers) sum += scores[number];
      for (int64_t j = 0; j < top_k; ++j) {
        const float score = scores[numbers[j]];
        weights.data()[row * top_k + j] =
            (params.renormalize ? score / sum : score) * scaling;
        chosen.data()[row * top_k + j] = static_cast<int32_t>(numbers[j]);
      }
    }
  });
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::choose_experts

XLA_KERNEL_HOST(XlaGpuChooseExperts,
                torch_xla_ext::choose_experts::kChooseExperts,
                torch_xla_ext::choose_experts::ChooseOnHost);
