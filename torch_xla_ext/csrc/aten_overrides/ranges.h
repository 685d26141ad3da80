// arange, linspace, full and similar factories.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANGES_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANGES_H_

#include <ATen/Dispatch.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/RangeUtils.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

inline bool IsInteger(const at::Scalar& number) {
  constexpr double kLargest = 1ll << 53;
  const double value = number.to<double>();
  return value == std::trunc(value) && std::abs(value) < kLargest;
}

// The number of elements of an arange, as PyTorch counts them.
inline int64_t ArangeSize(const at::Scalar& start, const at::Scalar& end,
                          const at::Scalar& step, at::ScalarType type) {
  TORCH_CHECK(type != at::kLong || step.to<double>() == 0 || step.toLong() != 0,
              "arange: step is ", step,
              ", which is 0 as an integer; give a dtype of floats");
  int64_t size = 0;
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, type, "arange", [&] {
    size = at::native::compute_arange_size<scalar_t>(start, end, step);
  });
  return size;
}

// Whether the upstream kernel, which adds the step until it passes the end,
// does so without rounding.
inline bool IsCountedExactly(const at::Scalar& start, const at::Scalar& end,
                             const at::Scalar& step, at::ScalarType type) {
  if (type == at::kLong) return true;
  if (type == at::kByte && (start.to<double>() < 0 || step.to<double>() < 0)) {
    return false;
  }
  return IsInteger(start) && IsInteger(end) && IsInteger(step);
}

// With the upstream kernel's rounded sums, arange(0, 1, 0.1) had 11 elements.
inline at::Tensor& ArangeOut(const at::Scalar& start, const at::Scalar& end,
                             const at::Scalar& step, at::Tensor& out) {
  const at::ScalarType type = out.scalar_type();
  if (at::isBarebonesUnsignedType(type)) {  // which PyTorch's CPU refuses
    return Upstream::arange_out(start, end, step, out);
  }
  const int64_t size = ArangeSize(start, end, step, type);
  if (IsCountedExactly(start, end, step, type)) {
    return Upstream::arange_out(start, end, step, out);
  }
  const bool is_integer = at::isIntegralType(type, /*includeBool=*/false);
  const at::Tensor places = at::arange(
      size, out.options().dtype(is_integer ? at::kLong : at::kDouble));
  const at::Tensor values =
      is_integer ? at::add(at::mul(places, step.toLong()), start.toLong())
                 : at::add(at::mul(places, step.toDouble()), start.toDouble());
  torch_xla::bridge::GetXlaTensor(out)->SetIrValue(
      torch_xla::bridge::GetXlaTensor(values.to(type))->GetIrValue(),
      /*inplace=*/true,
      /*delay_eager_execution=*/false);
  return out;
}

// Computes as PyTorch does: the first half from the first number, the rest from
// the last, which is exact.
inline at::Tensor Spaced(const at::Scalar& first, const at::Scalar& last,
                         const at::Scalar& distance, int64_t steps,
                         at::ScalarType type, at::TensorOptions options) {
  const at::Tensor place = at::arange(steps, options.dtype(at::kLong));
  const at::Tensor from_first =
      at::add(at::mul(place.to(type), distance), first);
  const at::Tensor from_last =
      at::rsub(at::mul(at::rsub(place, steps - 1).to(type), distance), last);
  return at::where(at::lt(place, steps / 2), from_first, from_last);
}

// The upstream kernel computes in float32, also integers and float64.
inline at::Tensor Linspace(const at::Scalar& start, const at::Scalar& end,
                           int64_t steps, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout,
                           std::optional<at::Device> device,
                           std::optional<bool> pin_memory) {
  const at::ScalarType type =
      dtype.value_or(at::get_default_dtype_as_scalartype());
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (layout.value_or(at::kStrided) != at::kStrided ||
      pin_memory.value_or(false)) {
    return Upstream::linspace(start, end, steps, dtype, layout, device,
                              pin_memory);
  }
  const auto options =
      at::TensorOptions().dtype(type).layout(layout).device(device);
  if (steps == 0) return at::empty({0}, options);
  if (steps == 1) return at::full({steps}, start, options);
  at::Tensor result;
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(
      at::kHalf, at::kBFloat16, type, "linspace", [&] {
        using Number = std::conditional_t<
            std::is_integral_v<scalar_t>, double,
            std::conditional_t<sizeof(scalar_t) == 2, float, scalar_t>>;
        const auto first = static_cast<Number>(start.to<scalar_t>());
        const auto last = static_cast<Number>(end.to<scalar_t>());
        const Number distance = (last - first) / static_cast<Number>(steps - 1);
        result = Spaced(first, last, distance, steps,
                        c10::CppTypeToScalarType<Number>::value, options);
      });
  return result.to(type);
}

// The upstream kernel makes 128-bit complex numbers.
inline at::Tensor Full(at::IntArrayRef size, const at::Scalar& fill_value,
                       std::optional<at::ScalarType> dtype,
                       std::optional<at::Layout> layout,
                       std::optional<at::Device> device,
                       std::optional<bool> pin_memory) {
  if (!dtype && fill_value.isComplex()) {
    dtype = at::toComplexType(at::get_default_dtype_as_scalartype());
  }
  return Upstream::full(size, fill_value, dtype, layout, device, pin_memory);
}

// PyTorch's function needs a kernel of the device that fills a tensor.
inline at::Tensor KaiserWindow(int64_t window_length, bool periodic,
                               double beta, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout,
                               std::optional<at::Device> device,
                               std::optional<bool> pin_memory) {
  return at::native::kaiser_window(window_length, periodic, beta, dtype, layout,
                                   at::kCPU, pin_memory)
      .to(device.value());
}

inline at::Tensor KaiserWindowOfPeriod(int64_t window_length, bool periodic,
                                       std::optional<at::ScalarType> dtype,
                                       std::optional<at::Layout> layout,
                                       std::optional<at::Device> device,
                                       std::optional<bool> pin_memory) {
  return KaiserWindow(window_length, periodic, /*beta=*/12, dtype, layout,
                      device, pin_memory);
}

inline at::Tensor KaiserWindowOfLength(int64_t window_length,
                                       std::optional<at::ScalarType> dtype,
                                       std::optional<at::Layout> layout,
                                       std::optional<at::Device> device,
                                       std::optional<bool> pin_memory) {
  return KaiserWindow(window_length, /*periodic=*/true, /*beta=*/12, dtype,
                      layout, device, pin_memory);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_RANGES_H_
