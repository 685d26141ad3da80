// Images of other sizes: interpolation and pixel_shuffle.
//
// In interpolation, the upstream kernels derive scales from the two sizes;
// PyTorch uses the given scales. And they multiply distant elements by 0, which
// is NaN for NaN and infinities.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INTERPOLATION_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INTERPOLATION_H_

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

inline bool FollowsFromSizes(int64_t size, int64_t output_size,
                             std::optional<double> scale) {
  return !scale.has_value() || *scale <= 0 ||
         *scale * static_cast<double>(size) == static_cast<double>(output_size);
}

inline bool FollowFromSizes(const at::Tensor& self, at::IntArrayRef output_size,
                            std::optional<double> scales_h,
                            std::optional<double> scales_w) {
  return FollowsFromSizes(self.size(-2), output_size[0], scales_h) &&
         FollowsFromSizes(self.size(-1), output_size[1], scales_w);
}

inline double Ratio(int64_t size, int64_t output_size,
                    std::optional<double> scale) {
  return scale.has_value() && *scale > 0
             ? 1 / *scale
             : static_cast<double>(size) / static_cast<double>(output_size);
}

// For a dimension, the two elements between which each element of the result
// is, and its fraction of the second one.
struct Places {
  at::Tensor below, above, weight;
};

inline Places PlacesOf(int64_t size, int64_t output_size, bool align_corners,
                       std::optional<double> scale,
                       const at::TensorOptions& options) {
  at::Tensor place = at::arange(output_size, options);
  if (align_corners) {
    const double ratio = output_size > 1
                             ? static_cast<double>(size - 1) /
                                   static_cast<double>(output_size - 1)
                             : 0;
    place = at::mul(place, ratio);
  } else {
    const double ratio = Ratio(size, output_size, scale);
    place = at::clamp_min(at::sub(at::mul(at::add(place, 0.5), ratio), 0.5), 0);
  }
  const at::Tensor below =
      at::clamp_max(at::floor(place).to(at::kLong), size - 1);
  return {below, at::clamp_max(at::add(below, 1), size - 1),
          at::sub(place, below)};
}

inline std::vector<int64_t> AlongDimension(const at::Tensor& self, int64_t dim,
                                           int64_t size) {
  std::vector<int64_t> shape(self.dim(), 1);
  shape[dim < 0 ? dim + self.dim() : dim] = size;
  return shape;
}

// Interpolates `self` linearly at fractional positions along dimension `dim`.
inline at::Tensor Linear(const at::Tensor& self, int64_t dim,
                         int64_t output_size, bool align_corners,
                         std::optional<double> scale) {
  const Places places = PlacesOf(self.size(dim), output_size, align_corners,
                                 scale, self.options());
  const at::Tensor weight =
      places.weight.view(AlongDimension(self, dim, output_size));
  return at::add(
      at::mul(at::index_select(self, dim, places.below), at::rsub(weight, 1)),
      at::mul(at::index_select(self, dim, places.above), weight));
}

// Interpolates bytes in int32. PyTorch rounds after each dimension, and
// multiplies by 16-bit fixed-point weights, with as many fractional bits as the
// largest weight permits.
inline at::Tensor LinearOfBytes(const at::Tensor& self, int64_t dim,
                                int64_t output_size, bool align_corners,
                                std::optional<double> scale) {
  const Places places = PlacesOf(self.size(dim), output_size, align_corners,
                                 scale, self.options().dtype(at::kDouble));
  const at::Tensor weight =
      at::where(at::eq(places.below, places.above),
                at::zeros_like(places.weight), places.weight);
  const at::Tensor largest =
      at::maximum(at::amax(weight), at::rsub(at::amin(weight), 1));
  // 2 to the power of the number of bits: 15 if the largest weight is less than
  // (2**15 - 0.5) / 2**15, else 14.
  const at::Tensor unit =
      at::where(at::lt(largest, (32768 - 0.5) / 32768), 32768.0, 16384.0)
          .to(at::kDouble);
  const auto rounded = [&](const at::Tensor& share) {
    return at::floor(at::add(at::mul(share, unit), 0.5))
        .to(at::kInt)
        .view(AlongDimension(self, dim, output_size));
  };
  const at::Tensor sum = at::add(
      at::mul(at::index_select(self, dim, places.below),
              rounded(at::rsub(weight, 1))),
      at::mul(at::index_select(self, dim, places.above), rounded(weight)));
  const at::Tensor half = at::div(unit, 2).to(at::kInt);
  return at::clamp(at::floor_divide(at::add(sum, half), unit.to(at::kInt)), 0,
                   255);
}

inline at::Tensor Nearest(const at::Tensor& self, int64_t dim,
                          int64_t output_size, std::optional<double> scale) {
  const int64_t size = self.size(dim);
  const at::Tensor place =
      at::mul(at::arange(output_size, self.options().dtype(at::kFloat)),
              static_cast<float>(Ratio(size, output_size, scale)));
  return at::index_select(
      self, dim, at::clamp_max(at::floor(place).to(at::kLong), size - 1));
}

inline at::Tensor UpsampleBilinear2d(const at::Tensor& self,
                                     at::IntArrayRef output_size,
                                     bool align_corners,
                                     std::optional<double> scales_h,
                                     std::optional<double> scales_w) {
  const at::ScalarType dtype = self.scalar_type();
  if (Has16Bits(self)) {  // PyTorch interpolates these in float32.
    return UpsampleBilinear2d(self.to(at::kFloat), output_size, align_corners,
                              scales_h, scales_w)
        .to(dtype);
  }
  if (dtype == at::kByte) {
    const at::Tensor columns = LinearOfBytes(
        self.to(at::kInt), -1, output_size[1], align_corners, scales_w);
    return LinearOfBytes(columns, -2, output_size[0], align_corners, scales_h)
        .to(dtype);
  }
  const at::Tensor values =
      at::isFloatingType(dtype) ? self : self.to(at::kFloat);
  const at::Tensor rows =
      Linear(values, -2, output_size[0], align_corners, scales_h);
  return Linear(rows, -1, output_size[1], align_corners, scales_w).to(dtype);
}

inline at::Tensor UpsampleNearest2d(const at::Tensor& self,
                                    at::IntArrayRef output_size,
                                    std::optional<double> scales_h,
                                    std::optional<double> scales_w) {
  if (FollowFromSizes(self, output_size, scales_h, scales_w)) {
    return Upstream::upsample_nearest2d(self, output_size, scales_h, scales_w);
  }
  return Nearest(Nearest(self, -2, output_size[0], scales_h), -1,
                 output_size[1], scales_w);
}

// The upstream kernel takes the second dimension for the channels.
inline at::Tensor PixelShuffle(const at::Tensor& self, int64_t factor) {
  const int64_t batch = self.dim() - 3;
  std::vector<int64_t> split = self.sizes().slice(0, batch).vec();
  std::vector<int64_t> result = split, order(batch);
  std::iota(order.begin(), order.end(), 0);
  const int64_t channels = self.size(batch) / (factor * factor);
  const int64_t height = self.size(-2), width = self.size(-1);
  split.insert(split.end(), {channels, factor, factor, height, width});
  order.insert(order.end(),
               {batch, batch + 3, batch + 1, batch + 4, batch + 2});
  result.insert(result.end(), {channels, height * factor, width * factor});
  return at::view_copy(at::permute_copy(at::view_copy(self, split), order),
                       result);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INTERPOLATION_H_
