// Operators that PyTorch computes in float32 for 16-bit floats, rounding once.
//
// A sum in float32 (runtime_fixes/reductions.h) is not enough if more
// operations follow: a mean of 70,000 ones overflows in float16 before the
// division.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_PRECISION_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_PRECISION_H_

#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The 16-bit type of an operator's result: that of its `dtype` argument, if it
// has one, else the type of its operands, if that is one and the same.
class ResultType {
 public:
  void See(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point()) return;
    is_mixed_ |= operands_.has_value() && *operands_ != tensor.scalar_type();
    operands_ = tensor.scalar_type();
  }
  void See(const std::optional<at::Tensor>& tensor) {
    if (tensor.has_value()) See(*tensor);
  }
  void See(std::optional<at::ScalarType> dtype) { argument_ = dtype; }
  void See(at::ScalarType dtype) { argument_ = dtype; }
  template <typename Other>
  void See(const Other&) {}

  // Returns nothing if the type does not have 16 bits.
  std::optional<at::ScalarType> Get() const {
    if (is_mixed_) return std::nullopt;
    const auto type = argument_.has_value() ? argument_ : operands_;
    return type.has_value() && at::isReducedFloatingType(*type) ? type
                                                                : std::nullopt;
  }

 private:
  std::optional<at::ScalarType> operands_, argument_;
  bool is_mixed_ = false;
};

// Arguments for the computation in float32 of results of type `type`.
inline at::Tensor InFloat32(const at::Tensor& tensor, at::ScalarType type) {
  if (!tensor.defined() || !tensor.is_floating_point()) return tensor;
  return tensor.to(type).to(at::kFloat);
}
inline std::optional<at::Tensor> InFloat32(
    const std::optional<at::Tensor>& tensor, at::ScalarType type) {
  if (!tensor.has_value()) return tensor;
  return InFloat32(*tensor, type);
}
inline std::optional<at::ScalarType> InFloat32(std::optional<at::ScalarType>,
                                               at::ScalarType) {
  return at::kFloat;
}
inline at::ScalarType InFloat32(at::ScalarType, at::ScalarType) {
  return at::kFloat;
}
template <typename Other>
const Other& InFloat32(const Other& other, at::ScalarType) {
  return other;
}

inline at::Tensor Rounded(const at::Tensor& result, at::ScalarType type) {
  return result.scalar_type() == at::kFloat ? result.to(type) : result;
}
template <typename... Tensors>
std::tuple<Tensors...> Rounded(const std::tuple<Tensors...>& results,
                               at::ScalarType type) {
  return std::apply(
      [type](const auto&... result) {
        return std::tuple<Tensors...>(Rounded(result, type)...);
      },
      results);
}

// `kKernel`, of the type `Function`, with 16-bit floats computed in float32.
template <typename Function, Function* kKernel>
struct Float32;

template <typename Result, typename... Arguments,
          Result (*kKernel)(Arguments...)>
struct Float32<Result(Arguments...), kKernel> {
  static Result Call(Arguments... arguments) {
    ResultType seen;
    (seen.See(arguments), ...);
    const std::optional<at::ScalarType> type = seen.Get();
    if (!type.has_value()) return kKernel(arguments...);
    return Rounded(kKernel(InFloat32(arguments, *type)...), *type);
  }
};

// The same for a kernel without overloads.
template <auto kKernel>
inline constexpr auto kFloat32 =
    &Float32<std::remove_pointer_t<decltype(kKernel)>, kKernel>::Call;

inline std::optional<at::ScalarType> DtypeIn(
    std::optional<at::ScalarType> dtype) {
  return dtype;
}
template <typename Other>
std::optional<at::ScalarType> DtypeIn(const Other&) {
  return std::nullopt;
}
inline std::optional<at::ScalarType> DtypeIn(at::ScalarType dtype) {
  return dtype;
}

// Refuses a `dtype` that PyTorch refuses for a tensor of some type.
using DtypeCheck = void(at::ScalarType type,
                        std::optional<at::ScalarType> dtype);

inline void AnyDtype(at::ScalarType, std::optional<at::ScalarType>) {}

// `kKernel`, of the type `Function`, of the tensor in the type that a `dtype`
// among its other arguments names. The upstream kernels of means and norms
// convert their results: a mean of bfloat16 in float32 had 16 bits, and one of
// a mask was refused.
template <typename Function, Function* kKernel, DtypeCheck* kCheck>
struct Converted;

template <typename... Others,
          at::Tensor (*kKernel)(const at::Tensor&, Others...),
          DtypeCheck* kCheck>
struct Converted<at::Tensor(const at::Tensor&, Others...), kKernel, kCheck> {
  static at::Tensor Call(const at::Tensor& self, Others... others) {
    std::optional<at::ScalarType> dtype;
    ((dtype = dtype.has_value() ? dtype : DtypeIn(others)), ...);
    kCheck(self.scalar_type(), dtype);
    return kKernel(self.to(dtype.value_or(self.scalar_type())), others...);
  }
};

// The same for a kernel without overloads.
template <auto kKernel, DtypeCheck* kCheck = &AnyDtype>
inline constexpr auto kConverted =
    &Converted<std::remove_pointer_t<decltype(kKernel)>, kKernel, kCheck>::Call;

// With `half_to_float`, the result is float32.
template <auto kUpstream>
at::Tensor SoftmaxInFloat32(const at::Tensor& self, int64_t dim,
                            bool half_to_float) {
  TORCH_CHECK(self.is_floating_point(),
              "softmax: the dtype must be one of floating point, but is ",
              c10::toString(self.scalar_type()),
              "; give one, as in dtype=torch.float32");
  if (!Has16Bits(self)) return kUpstream(self, dim, half_to_float);
  const at::Tensor result =
      kUpstream(self.to(at::kFloat), dim, /*half_to_float=*/false);
  return half_to_float ? result : result.to(self.scalar_type());
}

// The upstream kernels refuse a tensor without dimensions.
template <auto kUpstream>
at::Tensor SoftmaxBackward(const at::Tensor& grad_output,
                           const at::Tensor& output, int64_t dim,
                           at::ScalarType input_dtype) {
  if (output.dim() == 0) {
    return AsScalar(kUpstream(at::view_copy(grad_output, {1}),
                              at::view_copy(output, {1}), dim, input_dtype));
  }
  return kUpstream(grad_output, output, dim, input_dtype);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_PRECISION_H_
