// A simple implementation of attention to a paged cache on the Host, in float:
// the reference for the CUDA kernels' tests.
#ifndef KERNELS_COMMON_HOST_ATTENTION_H_
#define KERNELS_COMMON_HOST_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/common/host_floats.h"

namespace torch_xla_ext {

// The keys or values of one kv head in the cache: token j of a sequence is at
// data[page * page_stride + (j % page_size) * token_stride], where page is the
// number in entry j / page_size of its sequence's page table.
template <typename C>
struct HostPages {
  const C* data;
  int64_t num_pages;
  int64_t page_size;
  int64_t page_stride;
  int64_t token_stride;
};

// The locations of a sequence's tokens.
struct PageTable {
  const int32_t* pages;
  int64_t page_size;
  int64_t num_pages;  // in the cache

  bool Has(int64_t token) const {
    const int64_t page = pages[token / page_size];
    return 0 <= page && page < num_pages;
  }

  // The tokens in [begin, end) that are in the cache, in order.
  std::vector<int64_t> Tokens(int64_t begin, int64_t end) const {
    std::vector<int64_t> tokens;
    for (int64_t token = begin; token < end; ++token) {
      if (Has(token)) tokens.push_back(token);
    }
    return tokens;
  }

  // Prints the out-of-range page numbers of the tokens [begin, end).
  void Report(const char* table, int64_t sequence, int64_t begin,
              int64_t end) const {
    for (int64_t i = begin / page_size; i * page_size < end; ++i) {
      if (Has(i * page_size)) continue;
      std::fprintf(
          stderr,
          "%s[%lld][%lld] is %d, which is not in [0, %lld): its tokens "
          "take no part\n",
          table, static_cast<long long>(sequence), static_cast<long long>(i),
          pages[i], static_cast<long long>(num_pages));
    }
  }
};

// Clamps to [low, high], and prints a clamped value if `report` is set.
inline int64_t ClampAndReport(int64_t value, int64_t low, int64_t high,
                              bool report, const char* name, int64_t index) {
  const int64_t clamped = std::min(std::max(value, low), high);
  if (report && clamped != value) {
    std::fprintf(
        stderr, "%s[%lld] is %lld, which is not in [%lld, %lld]: clamped\n",
        name, static_cast<long long>(index), static_cast<long long>(value),
        static_cast<long long>(low), static_cast<long long>(high));
  }
  return clamped;
}

// The rows of `tokens`, as floats, one after another.
template <typename C>
std::vector<float> GatherRows(const HostPages<C>& pages, const PageTable& table,
                              const std::vector<int64_t>& tokens,
                              int64_t head_dim) {
  std::vector<float> rows(tokens.size() * head_dim);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t page = table.pages[tokens[i] / pages.page_size];
    ToFloats(pages.data + page * pages.page_stride +
                 tokens[i] % pages.page_size * pages.token_stride,
             head_dim, &rows[i * head_dim]);
  }
  return rows;
}

struct LogitOptions {
  float scale;     // of query and keys
  float soft_cap;  // 0: none
  float alibi_slope = 0;
};

// Uses several sums, which the compiler turns into vector instructions.
inline float Dot(const float* a, const float* b, int64_t count) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float total = 0;
  for (int j = 0; j < count % kLanes; ++j) total += a[i + j] * b[i + j];
  for (float sum : sums) total += sum;
  return total;
}

// Attention of one query, at `position` in its sequence, to those tokens among
// tokens[first] … tokens[last - 1] for which is_seen(token) is true. `keys` and
// `values` have the rows of all tokens. Returns the logarithm of the softmax's
// denominator, which includes the sink: a logit without a value vector
// (-INFINITY if there is no sink). Without tokens, the result is zeros.
template <typename IsSeen>
float Attend(const float* query, int64_t position,
             const std::vector<int64_t>& tokens, int64_t first, int64_t last,
             const IsSeen& is_seen, const std::vector<float>& keys,
             const std::vector<float>& values, int64_t head_dim,
             const LogitOptions& options, float sink, std::vector<float>* out) {
  out->assign(head_dim, 0);
  std::vector<int64_t> seen;
  for (int64_t i = first; i < last; ++i) {
    if (is_seen(tokens[i])) seen.push_back(i);
  }
  if (seen.empty()) return sink;
  std::vector<float> weights;
  float max = sink;
  for (const int64_t i : seen) {
    float logit = options.scale * Dot(query, &keys[i * head_dim], head_dim);
    if (options.soft_cap > 0) {
      logit = options.soft_cap * std::tanh(logit / options.soft_cap);
    }
    logit += options.alibi_slope * static_cast<float>(tokens[i] - position);
    weights.push_back(logit);
    max = std::max(max, logit);
  }
  double sum = sink == -INFINITY ? 0 : std::exp(sink - max);
  for (float& weight : weights) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    const float weight = weights[i];
    const float* value = &values[seen[i] * head_dim];
    for (int64_t d = 0; d < head_dim; ++d) (*out)[d] += weight * value[d];
  }
  const float scale = static_cast<float>(1 / sum);
  for (float& element : *out) element *= scale;
  return static_cast<float>(max + std::log(sum));
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_HOST_ATTENTION_H_
