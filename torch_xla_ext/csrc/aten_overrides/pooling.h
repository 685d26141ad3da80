// Pooling. The upstream kernels divide by the strides, which crashes the
// process if one is 0, and accept other wrong arguments.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_POOLING_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_POOLING_H_

#include <ATen/NativeFunctions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// A list of one number applies to all dimensions.
inline int64_t At(at::IntArrayRef list, int64_t i, int64_t otherwise = 0) {
  if (list.empty()) return otherwise;
  return list[list.size() == 1 ? 0 : i];
}

inline void CheckPool(const char* name, at::IntArrayRef kernel_size,
                      at::IntArrayRef stride, at::IntArrayRef padding) {
  for (size_t i = 0; i < kernel_size.size(); ++i) {
    const int64_t kernel = kernel_size[i];
    TORCH_CHECK(kernel > 0, name, ": kernel_size must be above 0, but is ",
                kernel_size);
    const int64_t pad = padding.size() == 1  ? padding[0]
                        : i < padding.size() ? padding[i]
                                             : 0;
    TORCH_CHECK(pad >= 0 && pad <= kernel / 2, name,
                ": padding must be 0 to half of kernel_size ", kernel_size,
                ", but is ", padding);
  }
  for (int64_t step : stride) {
    TORCH_CHECK(step > 0, name, ": stride must be above 0, but is ", stride);
  }
}

// The size of each window inside of the padded input. With ceil_mode, a window
// may be larger than that, of which the upstream kernels make results of other
// sizes; no other window fits into this dimension then.
inline std::vector<int64_t> Clipped(const at::Tensor& self,
                                    at::IntArrayRef kernel_size,
                                    at::IntArrayRef padding, bool ceil_mode,
                                    int64_t spatial) {
  std::vector<int64_t> clipped = kernel_size.vec();
  if (!ceil_mode || self.dim() < spatial) return clipped;
  clipped.resize(spatial, kernel_size[0]);
  for (int64_t i = 0; i < spatial; ++i) {
    clipped[i] =
        std::min(clipped[i], self.size(i - spatial) + 2 * At(padding, i));
  }
  return clipped;
}

// The upstream kernels ignore `divisor`, or use it wrongly: for integers,
// without count_include_pad, and with ceil_mode.
template <typename Operator, auto kUpstream, int64_t kSpatial>
at::Tensor AveragePool(const at::Tensor& self, at::IntArrayRef kernel_size,
                       at::IntArrayRef stride, at::IntArrayRef padding,
                       bool ceil_mode, bool count_include_pad,
                       std::optional<int64_t> divisor) {
  CheckPool("avg_pool", kernel_size, stride, padding);
  if (divisor.has_value() &&
      (ceil_mode || !at::isFloatingType(self.scalar_type()))) {
    return OnCpu<Operator>(self, kernel_size, stride, padding, ceil_mode,
                           count_include_pad, divisor);
  }
  return kUpstream(
      self, Clipped(self, kernel_size, padding, ceil_mode, kSpatial), stride,
      padding, ceil_mode, count_include_pad || divisor.has_value(), divisor);
}

inline at::Tensor AveragePool2dBackward(const at::Tensor& grad_output,
                                        const at::Tensor& self,
                                        at::IntArrayRef kernel_size,
                                        at::IntArrayRef stride,
                                        at::IntArrayRef padding, bool ceil_mode,
                                        bool count_include_pad,
                                        std::optional<int64_t> divisor) {
  return Upstream::avg_pool2d_backward(
      grad_output, self, Clipped(self, kernel_size, padding, ceil_mode, 2),
      stride, padding, ceil_mode, count_include_pad, divisor);
}

struct Window {
  at::IntArrayRef kernel_size, stride, padding, dilation;
  bool ceil_mode;
};

inline bool IsDilated(at::IntArrayRef dilation) {
  return std::any_of(dilation.begin(), dilation.end(),
                     [](int64_t step) { return step != 1; });
}

// The elements of each window of a pool.
class Windows {
 public:
  Windows(const at::Tensor& self, int64_t spatial, const Window& window)
      : elements_(self), rank_(self.dim() - spatial) {
    place_ = at::zeros({}, self.options().dtype(at::kLong));
    is_inside_ = at::ones({}, self.options().dtype(at::kBool));
    std::vector<int64_t> sizes = self.sizes().slice(0, rank_).vec();
    for (int64_t i = 0; i < spatial; ++i) {
      const int64_t size = self.size(rank_ + i);
      const int64_t kernel = At(window.kernel_size, i);
      const int64_t stride = At(window.stride, i, kernel);
      const int64_t padding = At(window.padding, i);
      const int64_t dilation = At(window.dilation, i, 1);
      const int64_t count =
          Count(size, kernel, stride, padding, dilation, window.ceil_mode);
      const auto options = self.options().dtype(at::kLong);
      const at::Tensor index = at::add(
          at::view_copy(
              at::sub(at::mul(at::arange(count, options), stride), padding),
              {count, 1}),
          at::mul(at::arange(kernel, options), dilation));
      const at::Tensor nearest =
          at::clamp_max(at::clamp_min(index, 0), size - 1);
      std::vector<int64_t> shape(2 * spatial, 1);
      shape[2 * i] = count;
      shape[2 * i + 1] = kernel;
      elements_ =
          at::index_select(elements_, rank_ + i, at::view_copy(nearest, {-1}));
      place_ = at::add(at::mul(place_, size), at::view_copy(nearest, shape));
      is_inside_ = at::logical_and(
          is_inside_, at::view_copy(at::eq(index, nearest), shape));
      sizes.insert(sizes.end(), {count, kernel});
      dims_.push_back(rank_ + 2 * i + 1);
      ones_.insert(ones_.end(), {count, 1});
      plane_ *= size;
    }
    elements_ = at::view_copy(elements_, sizes);
  }

  at::Tensor Maxima() const {
    return at::amax(at::where(is_inside_, elements_,
                              at::full({}, -INFINITY, elements_.options())),
                    dims_);
  }

  // The index of each maximum in its plane: that of the first maximum, or of
  // the last NaN.
  at::Tensor Places(const at::Tensor& maxima) const {
    std::vector<int64_t> shape = maxima.sizes().slice(0, rank_).vec();
    shape.insert(shape.end(), ones_.begin(), ones_.end());
    const at::Tensor is_largest = at::logical_and(
        is_inside_, at::eq(elements_, at::view_copy(maxima, shape)));
    const at::Tensor first =
        at::amin(at::where(is_largest, place_, plane_), dims_);
    if (!elements_.is_floating_point()) return first;
    const at::Tensor last =
        at::amax(at::where(at::logical_and(is_inside_, at::isnan(elements_)),
                           place_, -1),
                 dims_);
    return at::where(at::ge(last, 0), last, first);
  }

 private:
  // As at::native::pooling_output_shape does.
  static int64_t Count(int64_t size, int64_t kernel, int64_t stride,
                       int64_t padding, int64_t dilation, bool ceil_mode) {
    const int64_t rest = size + 2 * padding - dilation * (kernel - 1) - 1;
    TORCH_CHECK(rest >= 0 || ceil_mode,
                "max_pool: the window is larger than the padded input");
    const int64_t count = (rest + (ceil_mode ? stride - 1 : 0)) / stride + 1;
    return ceil_mode && (count - 1) * stride >= size + padding ? count - 1
                                                               : count;
  }

  at::Tensor elements_;   // a dimension of the result, then one of the window
  at::Tensor place_;      // of these elements in the plane
  at::Tensor is_inside_;  // and not in the padding
  std::vector<int64_t> dims_;  // those of the window
  std::vector<int64_t> ones_;  // the result's shape with 1 for these
  int64_t rank_;               // of what comes before the planes
  int64_t plane_ = 1;          // the number of elements
};

// Throws for sizes that PyTorch refuses.
inline void CheckPooledSizes(const at::Tensor& self, at::IntArrayRef kernel,
                             at::IntArrayRef stride, at::IntArrayRef padding,
                             at::IntArrayRef dilation, bool ceil_mode,
                             int64_t spatial) {
  TORCH_CHECK(self.dim() == spatial + 1 || self.dim() == spatial + 2,
              "max_pool: expected an input of ", spatial + 1, " or ",
              spatial + 2, " dimensions, but got: ", self.sizes());
  const auto check = [&](const char* name, at::IntArrayRef list) {
    TORCH_CHECK(
        list.size() == 1 || static_cast<int64_t>(list.size()) == spatial,
        "max_pool: ", name, " must be one number or ", spatial, ", but is ",
        list);
  };
  check("kernel_size", kernel);
  if (!stride.empty()) check("stride", stride);
  check("padding", padding);
  check("dilation", dilation);
  for (int64_t i = -spatial - 1; i < 0; ++i) {
    TORCH_CHECK(self.size(i) > 0,
                "max_pool: expected the input's non-batch dimensions to have "
                "positive length, but got: ",
                self.sizes());
  }
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t size = self.size(i - spatial);
    const int64_t window = At(dilation, i, 1) * (At(kernel, i) - 1) + 1;
    const int64_t step = At(stride, i, At(kernel, i));
    const int64_t left = size + 2 * At(padding, i) - window;
    TORCH_CHECK(left + (ceil_mode ? step - 1 : 0) >= 0,
                "max_pool: a window of ", window, " is larger than dimension ",
                self.dim() + i - spatial, " of the input, ", self.sizes(),
                ". Output size is too small");
  }
}

// The upstream kernels' indices of maxima that are NaN or -inf are wrong, and
// they run dilated windows on the CPU.
template <typename Operator, auto kUpstream, int64_t kSpatial>
std::tuple<at::Tensor, at::Tensor> MaxPoolWithIndices(
    const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  CheckPool("max_pool", kernel_size, stride, padding);
  CheckPooledSizes(self, kernel_size, stride, padding, dilation, ceil_mode,
                   kSpatial);
  const bool is_dilated = IsDilated(dilation);
  if (self.numel() == 0 || (is_dilated && !self.is_floating_point())) {
    return OnCpu<Operator>(self, kernel_size, stride, padding, dilation,
                           ceil_mode);
  }
  const Windows windows(self, kSpatial,
                        {kernel_size, stride, padding, dilation, ceil_mode});
  // Unread indices cost nothing.
  const at::Tensor maxima =
      is_dilated
          ? windows.Maxima()
          : std::get<0>(kUpstream(
                self, Clipped(self, kernel_size, padding, ceil_mode, kSpatial),
                stride, padding, dilation, ceil_mode));
  return {maxima, windows.Places(maxima)};
}

// Adds numbers at `indices` of planes with the sizes `sizes`.
inline at::Tensor AddedAt(const at::Tensor& numbers, const at::Tensor& indices,
                          at::IntArrayRef sizes, int64_t spatial) {
  int64_t planes = 1;
  for (size_t i = 0; i + spatial < sizes.size(); ++i) planes *= sizes[i];
  const int64_t count = numbers.numel() / std::max<int64_t>(planes, 1);
  const int64_t plane =
      c10::multiply_integers(sizes) / std::max<int64_t>(planes, 1);
  return at::view_copy(
      at::scatter_add(at::zeros({planes, plane}, numbers.options()), 1,
                      at::view_copy(indices, {planes, count}),
                      at::view_copy(numbers, {planes, count})),
      sizes);
}

// The upstream kernels ignore the indices, and run dilated windows on the CPU.
template <auto kUpstream, int64_t kSpatial>
at::Tensor MaxPoolBackward(const at::Tensor& grad_output,
                           const at::Tensor& self, at::IntArrayRef kernel_size,
                           at::IntArrayRef stride, at::IntArrayRef padding,
                           at::IntArrayRef dilation, bool ceil_mode,
                           const at::Tensor& indices) {
  if (!IsDilated(dilation) || self.numel() == 0) {
    return kUpstream(grad_output, self,
                     Clipped(self, kernel_size, padding, ceil_mode, kSpatial),
                     stride, padding, dilation, ceil_mode, indices);
  }
  return AddedAt(grad_output, indices, self.sizes(), kSpatial);
}

// The upstream kernels' gradients ignore the dilation.
template <auto kUpstream, auto kWithIndices, int64_t kSpatial>
at::Tensor MaxPool(const at::Tensor& self, at::IntArrayRef kernel_size,
                   at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, bool ceil_mode) {
  CheckPool("max_pool", kernel_size, stride, padding);
  TORCH_CHECK(self.scalar_type() != at::kBool && !self.is_complex(),
              "max_pool: not implemented for '", self.scalar_type(), "'");
  CheckPooledSizes(self, kernel_size, stride, padding, dilation, ceil_mode,
                   kSpatial);
  if (IsDilated(dilation) || IsSeenByPython(self) || HasTangent(self) ||
      IsTransformed()) {
    return std::get<0>(
        kWithIndices(self, kernel_size, stride, padding, dilation, ceil_mode));
  }
  return kUpstream(self,
                   Clipped(self, kernel_size, padding, ceil_mode, kSpatial),
                   stride, padding, dilation, ceil_mode);
}

// Throws for integers, as PyTorch's CPU does, though max_pool2d accepts them.
inline at::Tensor MaxPool1d(const at::Tensor& self, at::IntArrayRef kernel_size,
                            at::IntArrayRef stride, at::IntArrayRef padding,
                            at::IntArrayRef dilation, bool ceil_mode) {
  TORCH_CHECK(self.is_floating_point(), "max_pool1d: not implemented for '",
              self.scalar_type(),
              "': convert the tensor to a floating-point dtype");
  return at::native::max_pool1d(self, kernel_size, stride, padding, dilation,
                                ceil_mode);
}

// The same for pools whose windows follow from the result's size.
inline std::tuple<at::Tensor, at::Tensor> AdaptiveMaxPool2d(
    const at::Tensor& self, at::IntArrayRef output_size) {
  const auto result = Upstream::adaptive_max_pool2d(self, output_size);
  const int64_t height = self.size(-2), width = self.size(-1);
  if (self.numel() == 0 || output_size[0] == 0 || output_size[1] == 0 ||
      height % output_size[0] != 0 || width % output_size[1] != 0) {
    return result;  // of the CPU
  }
  const std::vector<int64_t> kernel = {height / output_size[0],
                                       width / output_size[1]};
  const Windows windows(self, 2, {kernel, kernel, {0}, {1}, false});
  return {std::get<0>(result), windows.Places(std::get<0>(result))};
}

// The upstream kernels lose -inf, and choose the largest of several values for
// one element.
inline at::Tensor Unpooled(const at::Tensor& self, const at::Tensor& indices,
                           at::IntArrayRef output_size, int64_t spatial) {
  TORCH_CHECK(static_cast<int64_t>(output_size.size()) == spatial,
              "max_unpool: output_size must have ", spatial,
              " elements, but is ", output_size);
  TORCH_CHECK(self.sizes() == indices.sizes(),
              "max_unpool: the shape of the indices, ", indices.sizes(),
              ", must be that of the input, ", self.sizes());
  std::vector<int64_t> sizes =
      self.sizes().slice(0, self.dim() - spatial).vec();
  const int64_t planes = c10::multiply_integers(sizes);
  sizes.insert(sizes.end(), output_size.begin(), output_size.end());
  const int64_t plane = c10::multiply_integers(output_size);
  if (self.numel() == 0) return at::zeros(sizes, self.options());
  return at::view_copy(at::scatter(at::zeros({planes, plane}, self.options()),
                                   1, at::view_copy(indices, {planes, -1}),
                                   at::view_copy(self, {planes, -1})),
                       sizes);
}

inline at::Tensor MaxUnpool2d(const at::Tensor& self, const at::Tensor& indices,
                              at::IntArrayRef output_size) {
  return Unpooled(self, indices, output_size, 2);
}

inline at::Tensor MaxUnpool3d(const at::Tensor& self, const at::Tensor& indices,
                              at::IntArrayRef output_size,
                              at::IntArrayRef /*stride*/,
                              at::IntArrayRef /*padding*/) {
  return Unpooled(self, indices, output_size, 3);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_POOLING_H_
