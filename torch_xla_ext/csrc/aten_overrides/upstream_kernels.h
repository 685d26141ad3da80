// Building blocks of this folder's operators: upstream's kernels, and functions
// that call them.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_UPSTREAM_KERNELS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_UPSTREAM_KERNELS_H_

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/ScalarOps.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "torch_xla_ext/csrc/native_functions.h"
#include "torch_xla_ext/csrc/runtime_fixes/mixed_devices.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::aten_overrides {

// The kernels of torch_xla, by the names of their operators.
using Upstream = torch_xla::XLANativeFunctions;

// Whether Python code (a dispatch mode or a subclass) must see each operator.
// Those of upstream's kernels that run before autograd would hide operators.
inline bool IsSeenByPython(const at::Tensor& tensor) {
  return c10::impl::dispatch_mode_enabled() ||
         tensor.key_set().has(c10::DispatchKey::Python);
}

// Whether forward-mode AD needs a tangent, which the functions of upstream's
// that come before autograd do not have.
inline bool HasTangent(const at::Tensor& tensor) {
  return c10::AutogradState::get_tls_state().get_fw_grad_mode() &&
         tensor._fw_grad(/*level=*/0).defined();
}

// Whether a transform of torch.func runs, which refuses upstream's functions
// that come before autograd.
inline bool IsTransformed() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(
      c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// Types of upstream kernels that have overloads.
using OfOne = at::Tensor(const at::Tensor&);
using OfTwo = at::Tensor(const at::Tensor&, const at::Tensor&);
using ByNumber = at::Tensor(const at::Tensor&, const at::Scalar&);
using OfNumberAnd = at::Tensor(const at::Scalar&, const at::Tensor&);
using Sum = at::Tensor(const at::Tensor&, at::OptionalIntArrayRef, bool,
                       std::optional<at::ScalarType>);
using Extremum = at::Tensor(const at::Tensor&, at::IntArrayRef, bool);
using Deviation = at::Tensor(const at::Tensor&, at::OptionalIntArrayRef,
                             const std::optional<at::Scalar>&, bool);
using Any = at::Tensor(const at::Tensor&, int64_t, bool);
using ExtremumOfDim = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&,
                                                         int64_t, bool);
using ProdOfDim = at::Tensor(const at::Tensor&, int64_t, bool,
                             std::optional<at::ScalarType>);
using IndexAdd = at::Tensor(const at::Tensor&, int64_t, const at::Tensor&,
                            const at::Tensor&, const at::Scalar&);
using IndexCopy = at::Tensor(const at::Tensor&, int64_t, const at::Tensor&,
                             const at::Tensor&);
using ScatterOfValue = at::Tensor(const at::Tensor&, int64_t, const at::Tensor&,
                                  const at::Scalar&);
using ScatterReducing = at::Tensor(const at::Tensor&, int64_t,
                                   const at::Tensor&, const at::Tensor&,
                                   std::string_view);
using ScatterReducingValue = at::Tensor(const at::Tensor&, int64_t,
                                        const at::Tensor&, const at::Scalar&,
                                        std::string_view);
using ScatterReduce = at::Tensor(const at::Tensor&, int64_t, const at::Tensor&,
                                 const at::Tensor&, std::string_view, bool);
using PadWithValue = at::Tensor(const at::Tensor&, at::IntArrayRef,
                                const at::Scalar&);
using DeviationAndMean = std::tuple<at::Tensor, at::Tensor>(
    const at::Tensor&, at::OptionalIntArrayRef,
    const std::optional<at::Scalar>&, bool);

// Runs an operator on the CPU, through the same fallback as operators that
// torch_xla does not implement, so that torch.compile knows of it. `Operator`
// is one of at::_ops.
template <typename Operator, typename... Arguments>
auto OnCpu(const Arguments&... arguments) {
  return at::native::call_fallback_fn<&torch_xla::xla_fallback, Operator>::call(
      arguments...);
}

inline bool IsComplex(const at::Tensor& tensor) { return tensor.is_complex(); }
inline bool IsComplex(const at::Scalar& number) { return number.isComplex(); }
template <typename Other>
bool IsComplex(const Other&) {
  return false;
}

// `kKernel`, of the type `Function`, which computes wrong numbers for complex
// operands: for these, `Operator` runs on the CPU.
template <typename Operator, typename Function, Function* kKernel>
struct ComplexOnCpu;

template <typename Operator, typename Result, typename... Arguments,
          Result (*kKernel)(Arguments...)>
struct ComplexOnCpu<Operator, Result(Arguments...), kKernel> {
  static Result Call(Arguments... arguments) {
    if ((IsComplex(arguments) || ...)) return OnCpu<Operator>(arguments...);
    return kKernel(arguments...);
  }
};

inline at::Tensor AsScalar(const at::Tensor& tensor) {
  return at::view_copy(tensor, at::IntArrayRef());
}

// `kKernel` for a tensor without dimensions, which its operator may treat as
// 1-dimensional. The upstream kernels refuse such a tensor.
template <typename Function, Function* kKernel>
struct OfScalarToo;

template <typename... Others,
          at::Tensor (*kKernel)(const at::Tensor&, Others...)>
struct OfScalarToo<at::Tensor(const at::Tensor&, Others...), kKernel> {
  static at::Tensor Call(const at::Tensor& self, Others... others) {
    if (self.dim() != 0) return kKernel(self, others...);
    return AsScalar(kKernel(at::view_copy(self, {1}), others...));
  }
};

template <typename... Others, std::tuple<at::Tensor, at::Tensor> (*kKernel)(
                                  const at::Tensor&, Others...)>
struct OfScalarToo<
    std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, Others...), kKernel> {
  static std::tuple<at::Tensor, at::Tensor> Call(const at::Tensor& self,
                                                 Others... others) {
    if (self.dim() != 0) return kKernel(self, others...);
    const auto [first, second] = kKernel(at::view_copy(self, {1}), others...);
    return {AsScalar(first), AsScalar(second)};
  }
};

// The same for a kernel without overloads.
template <auto kKernel>
inline constexpr auto kOfScalarToo =
    &OfScalarToo<std::remove_pointer_t<decltype(kKernel)>, kKernel>::Call;

inline at::Tensor AsVector(const at::Tensor& tensor) {
  return tensor.dim() == 1 ? tensor : at::view_copy(tensor, {-1});
}
template <typename Other>
const Other& AsVector(const Other& other) {
  return other;
}

// The same where indices and sources have the dimensions of the tensor, or are
// numbers for a vector.
template <typename Function, Function* kKernel>
struct OfScalarsToo;

template <typename... Others,
          at::Tensor (*kKernel)(const at::Tensor&, Others...)>
struct OfScalarsToo<at::Tensor(const at::Tensor&, Others...), kKernel> {
  static at::Tensor Call(const at::Tensor& self, Others... others) {
    if (self.dim() > 1) return kKernel(self, others...);
    const at::Tensor result = kKernel(AsVector(self), AsVector(others)...);
    return self.dim() == 0 ? AsScalar(result) : result;
  }
};

inline void Widen(std::vector<int64_t>& sizes, const at::Tensor& tensor) {
  sizes = at::infer_size(sizes, tensor.sizes());
}
template <typename Other>
void Widen(std::vector<int64_t>&, const Other&) {}

inline at::Tensor OfSizes(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return tensor.sizes() == sizes ? tensor : at::expand_copy(tensor, sizes);
}
template <typename Other>
const Other& OfSizes(const Other& other, at::IntArrayRef) {
  return other;
}

// `kKernel` of tensors that broadcast, as vmap passes them. The upstream kernel
// needs equal sizes.
template <typename Function, Function* kKernel>
struct Broadcast;

template <typename... Arguments, at::Tensor (*kKernel)(Arguments...)>
struct Broadcast<at::Tensor(Arguments...), kKernel> {
  static at::Tensor Call(Arguments... arguments) {
    std::vector<int64_t> sizes;
    (Widen(sizes, arguments), ...);
    return kKernel(OfSizes(arguments, sizes)...);
  }
};

// The same for a kernel without overloads.
template <auto kKernel>
inline constexpr auto kBroadcast =
    &Broadcast<std::remove_pointer_t<decltype(kKernel)>, kKernel>::Call;

inline bool IsGiven(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

inline bool Has16Bits(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type());
}

inline bool IsInteger(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

// `tensor` on the device of the other operands. Of operands on several devices,
// PyTorch takes one from the CPU if it is a number; torch_xla copies others,
// too.
inline at::Tensor OnDevice(const at::Tensor& tensor, at::Device device) {
  if (!tensor.is_cpu() || device.is_cpu() || tensor.dim() == 0) return tensor;
  ReportCopyToDevice(tensor, device);
  return tensor.to(device);
}

inline at::Device DeviceOf(const at::Tensor& self, const at::Tensor& other) {
  return (self.is_cpu() ? other : self).device();
}

// `kKernel` of two operands on one device, of which PyTorch converts a number
// to the type of the other operand: it rounds a float, and takes 300 for 44
// beside uint8. The upstream kernels compute in the wider type.
//
// Other integers are not converted: the upstream kernels promote them as
// PyTorch does, except for an int8 beside a uint8, which they take for a uint8,
// so that -1 is 255: PyTorch computes with both as int16.
template <typename Function, Function* kKernel>
struct Matched;

template <typename... Others,
          at::Tensor (*kKernel)(const at::Tensor&, const at::Tensor&,
                                Others...)>
struct Matched<at::Tensor(const at::Tensor&, const at::Tensor&, Others...),
               kKernel> {
  static at::Tensor Call(const at::Tensor& self, const at::Tensor& other,
                         Others... others) {
    const at::ScalarType dtype = at::result_type(self, other);
    const at::Device device = DeviceOf(self, other);
    return kKernel(Operand(OnDevice(self, device), dtype),
                   Operand(OnDevice(other, device), dtype), others...);
  }

  // The operator with a number in place of `other`.
  static at::Tensor OfNumber(const at::Tensor& self, const at::Scalar& other,
                             Others... others) {
    return Call(self, at::native::wrapped_scalar_tensor(NumberFor(self, other)),
                others...);
  }

 private:
  // An integer next to a float tensor is passed as a float, not as an int64
  // that the program would convert.
  static at::Scalar NumberFor(const at::Tensor& self, const at::Scalar& other) {
    constexpr int64_t kExact = int64_t{1} << 53;
    if (!self.is_floating_point() || !other.isIntegral(false)) return other;
    const int64_t value = other.toLong();
    return -kExact <= value && value <= kExact
               ? at::Scalar(static_cast<double>(value))
               : other;
  }

  static at::Tensor Operand(const at::Tensor& tensor, at::ScalarType dtype) {
    const bool is_byte = dtype == at::kShort && tensor.element_size() == 1;
    const bool is_number =
        tensor.dim() == 0 && at::isIntegralType(dtype, /*includeBool=*/false);
    const bool is_unchanged = (IsInteger(tensor) && !is_byte && !is_number) ||
                              dtype == at::kComplexHalf;
    return is_unchanged ? tensor : tensor.to(dtype);
  }
};

// The type to which PyTorch converts integers and booleans in a function of
// floats.
inline at::Tensor AsFloat(const at::Tensor& tensor) {
  return tensor.to(at::get_default_dtype_as_scalartype());
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_UPSTREAM_KERNELS_H_
