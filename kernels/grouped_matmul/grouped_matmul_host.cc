// The grouped products for the CPU.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/host_attention.h"
#include "kernels/common/host_floats.h"
#include "kernels/grouped_matmul/grouped_matmul.h"

namespace torch_xla_ext::grouped_matmul {
namespace {

using Ranges = Buffer<S32, 2>;

// Calls visit(group, begin, end) for each group, with its rows.
template <typename Visitor>
void VisitGroups(Ranges ranges, int64_t rows, const Visitor& visit) {
  int64_t before = 0;  // the largest end of the preceding ranges
  for (int64_t g = 0; g < ranges.dim(0); ++g) {
    const auto clip = [&](int64_t row) {
      return std::min(std::max<int64_t>(row, 0), rows);
    };
    const int64_t end = std::max(before, clip(ranges.data()[2 * g + 1]));
    const int64_t begin =
        std::min(std::max(before, clip(ranges.data()[2 * g])), end);
    visit(g, begin, end);
    before = end;
  }
}

// sums += factor * values
void AddScaled(float factor, const float* values, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += factor * values[i];
}

template <typename T>
void Round(const std::vector<float>& values, T* out) {
  for (size_t i = 0; i < values.size(); ++i) out[i] = FromFloat<T>(values[i]);
}

Status GroupedMatmul(AnyBuffer x, AnyBuffer w, Ranges ranges, AnyResult out) {
  const int64_t rows = x.dim(0), k = x.dim(1), n = out.dim(1);
  VisitFloat(x.dtype(), [&](auto t) {
    using T = decltype(t);
    std::fill_n(out.data<T>(), out.size(), T(0.0f));
    std::vector<float> inputs, weights(n), sums;
    VisitGroups(ranges, rows, [&](int64_t g, int64_t begin, int64_t end) {
      if (begin == end) return;
      inputs.resize((end - begin) * k);
      ToFloats(x.data<T>() + begin * k, (end - begin) * k, inputs.data());
      sums.assign((end - begin) * n, 0);
      for (int64_t i = 0; i < k; ++i) {
        ToFloats(w.data<T>() + (g * k + i) * n, n, weights.data());
        for (int64_t row = 0; row < end - begin; ++row) {
          AddScaled(inputs[row * k + i], weights.data(), n,
                    sums.data() + row * n);
        }
      }
      Round(sums, out.data<T>() + begin * n);
    });
  });
  return Status::Ok();
}

// Multiplies a row of k elements by the scales of their blocks.
void Scale(const float* scales, int64_t num_scales, int64_t k, float* row) {
  for (int64_t i = 0; i < k; ++i) {
    row[i] *= scales[num_scales == 1 ? 0 : i / kScaleBlock];
  }
}

// Loads elements of any dtype.
void Load(AnyBuffer from, int64_t first, int64_t count, float* to) {
  VisitFloat(from.dtype(), [&](auto t) {
    ToFloats(from.data<decltype(t)>() + first, count, to);
  });
}

// load_x(row, elements) and load_w(group, n, elements) load k elements.
template <typename LoadX, typename LoadW>
void LinearOf(int64_t k, Ranges ranges, AnyResult out, const LoadX& load_x,
              const LoadW& load_w) {
  const int64_t rows = out.dim(0), n = out.dim(1);
  std::vector<float> inputs, weights(k);
  VisitFloat(out.dtype(), [&](auto t) {
    using T = decltype(t);
    std::fill_n(out.data<T>(), out.size(), T(0.0f));
    VisitGroups(ranges, rows, [&](int64_t g, int64_t begin, int64_t end) {
      if (begin == end) return;
      inputs.resize((end - begin) * k);
      for (int64_t row = begin; row < end; ++row) {
        load_x(row, inputs.data() + (row - begin) * k);
      }
      for (int64_t i = 0; i < n; ++i) {
        load_w(g, i, weights.data());
        for (int64_t row = begin; row < end; ++row) {
          out.data<T>()[row * n + i] = FromFloat<T>(
              Dot(inputs.data() + (row - begin) * k, weights.data(), k));
        }
      }
    });
  });
}

Status GroupedLinear(AnyBuffer x, AnyBuffer w, Ranges ranges, AnyResult out) {
  const int64_t k = x.dim(1), n = out.dim(1);
  LinearOf(
      k, ranges, out, [&](int64_t row, float* to) { Load(x, row * k, k, to); },
      [&](int64_t g, int64_t i, float* to) {
        Load(w, (g * n + i) * k, k, to);
      });
  return Status::Ok();
}

Status ScaledGroupedLinear(AnyBuffer x, AnyBuffer w, Buffer<F32, 2> x_scale,
                           Buffer<F32, 3> w_scale, Ranges ranges, AnyBuffer,
                           AnyResult out) {
  const int64_t n = w.dim(1), k = w.dim(2);
  XLA_KERNEL_RETURN_IF_ERROR(CheckScales(n, k, w_scale));
  const int64_t n_scales = w_scale.dim(1), k_scales = w_scale.dim(2);
  LinearOf(
      k, ranges, out,
      [&](int64_t row, float* to) {
        Load(x, row * k, k, to);
        Scale(x_scale.data() + row * k_scales, k_scales, k, to);
      },
      [&](int64_t g, int64_t i, float* to) {
        const int64_t of_n = n_scales == n   ? i
                             : n_scales == 1 ? 0
                                             : i / kScaleBlock;
        Load(w, (g * n + i) * k, k, to);
        Scale(w_scale.data() + (g * n_scales + of_n) * k_scales, k_scales, k,
              to);
      });
  return Status::Ok();
}

Status MxGroupedLinear(AnyBuffer x, AnyBuffer w, AnyBuffer w_scale,
                       Ranges ranges, AnyResult out) {
  constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int64_t k = x.dim(1), n = out.dim(1);
  const auto* codes = static_cast<const uint8_t*>(w.untyped_data());
  const auto* exponents = static_cast<const uint8_t*>(w_scale.untyped_data());
  LinearOf(
      k, ranges, out, [&](int64_t row, float* to) { Load(x, row * k, k, to); },
      [&](int64_t g, int64_t row, float* to) {
        const int64_t first = (g * n + row) * k;
        for (int64_t i = 0; i < k; ++i) {
          const int code = codes[(first + i) / 2] >> (i % 2 * 4);
          const int exponent = exponents[(first + i) / kMxBlock];
          const float value = kValues[code & 7] * (code & 8 ? -1.0f : 1.0f);
          to[i] = exponent == 255 ? NAN : std::ldexp(value, exponent - 127);
        }
      });
  return Status::Ok();
}

void SumRows(Buffer<S32, 2> position, Buffer<F32, 2> weights, AnyResult out,
             AnyResult products) {
  const int64_t rows = products.dim(0), n = out.dim(1);
  const int64_t terms = position.dim(1);
  VisitFloat(out.dtype(), [&](auto t) {
    using T = decltype(t);
    std::vector<float> product(n), sums;
    for (int64_t i = 0; i < out.dim(0); ++i) {
      sums.assign(n, 0);
      for (int64_t j = i * terms; j < (i + 1) * terms; ++j) {
        const int64_t row = position.data()[j];
        if (row < 0 || row >= rows) continue;
        ToFloats(products.data<T>() + row * n, n, product.data());
        AddScaled(weights.data()[j], product.data(), n, sums.data());
      }
      Round(sums, out.data<T>() + i * n);
    }
  });
}

Status GroupedLinearSum(AnyBuffer x, AnyBuffer w, Ranges ranges,
                        Buffer<S32, 2> position, Buffer<F32, 2> weights,
                        AnyResult out, AnyResult products) {
  XLA_KERNEL_RETURN_IF_ERROR(GroupedLinear(x, w, ranges, products));
  SumRows(position, weights, out, products);
  return Status::Ok();
}

Status ScaledGroupedLinearSum(AnyBuffer x, AnyBuffer w, Buffer<F32, 2> x_scale,
                              Buffer<F32, 3> w_scale, Ranges ranges,
                              Buffer<S32, 2> position, Buffer<F32, 2> weights,
                              AnyBuffer like, AnyResult out,
                              AnyResult products) {
  XLA_KERNEL_RETURN_IF_ERROR(
      ScaledGroupedLinear(x, w, x_scale, w_scale, ranges, like, products));
  SumRows(position, weights, out, products);
  return Status::Ok();
}

Status MxGroupedLinearSum(AnyBuffer x, AnyBuffer w, AnyBuffer w_scale,
                          Ranges ranges, Buffer<S32, 2> position,
                          Buffer<F32, 2> weights, AnyResult out,
                          AnyResult products) {
  XLA_KERNEL_RETURN_IF_ERROR(MxGroupedLinear(x, w, w_scale, ranges, products));
  SumRows(position, weights, out, products);
  return Status::Ok();
}

Status GroupedOuter(AnyBuffer x, AnyBuffer y, Ranges ranges, AnyResult out) {
  const int64_t rows = x.dim(0), m = x.dim(1), n = y.dim(1);
  VisitFloat(x.dtype(), [&](auto t) {
    using T = decltype(t);
    std::vector<float> left(m), right(n), sums;
    VisitGroups(ranges, rows, [&](int64_t g, int64_t begin, int64_t end) {
      sums.assign(m * n, 0);
      for (int64_t row = begin; row < end; ++row) {
        ToFloats(x.data<T>() + row * m, m, left.data());
        ToFloats(y.data<T>() + row * n, n, right.data());
        for (int64_t i = 0; i < m; ++i) {
          AddScaled(left[i], right.data(), n, sums.data() + i * n);
        }
      }
      Round(sums, out.data<T>() + g * m * n);
    });
  });
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::grouped_matmul

namespace grouped = torch_xla_ext::grouped_matmul;

XLA_KERNEL_HOST(XlaGpuGroupedMatmul, grouped::kGroupedMatmul,
                grouped::GroupedMatmul);
XLA_KERNEL_HOST(XlaGpuGroupedLinear, grouped::kGroupedLinear,
                grouped::GroupedLinear);
XLA_KERNEL_HOST(XlaGpuGroupedLinearSum, grouped::kGroupedLinearSum,
                grouped::GroupedLinearSum);
XLA_KERNEL_HOST(XlaGpuGroupedOuter, grouped::kGroupedOuter,
                grouped::GroupedOuter);
XLA_KERNEL_HOST(XlaGpuScaledGroupedLinear, grouped::kScaledGroupedLinear,
                grouped::ScaledGroupedLinear);
XLA_KERNEL_HOST(XlaGpuScaledGroupedLinearSum, grouped::kScaledGroupedLinearSum,
                grouped::ScaledGroupedLinearSum);
XLA_KERNEL_HOST(XlaGpuMxGroupedLinear, grouped::kMxGroupedLinear,
                grouped::MxGroupedLinear);
XLA_KERNEL_HOST(XlaGpuMxGroupedLinearSum, grouped::kMxGroupedLinearSum,
                grouped::MxGroupedLinearSum);
