// Interposes on operators of torch_xla that compute wrong numbers for complex
// operands, return them in a wrong dtype, or end the process. With complex
// operands they run on the CPU, except for those that XLA computes in parts.
//
// This works because the stock binary calls them through its PLT.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "torch_xla_ext/csrc/front/floor_division.h"
#include "torch_xla_ext/csrc/front/on_cpu.h"
#include "torch_xla_ext/csrc/front/stock.h"

namespace torch_xla {

struct XLANativeFunctions {
  static at::Tensor _copy_from(const at::Tensor& self, const at::Tensor& dst,
                               bool non_blocking);
  static at::Scalar _local_scalar_dense(const at::Tensor& self);
  static at::Tensor _to_copy(const at::Tensor& self,
                             std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout,
                             std::optional<at::Device> device,
                             std::optional<bool> pin_memory, bool non_blocking,
                             std::optional<at::MemoryFormat> memory_format);
  static at::Tensor abs(const at::Tensor& self);
  static at::Tensor div(const at::Tensor& self, const at::Scalar& other);
  static at::Tensor div(const at::Tensor& self, const at::Tensor& other,
                        std::optional<std::string_view> rounding_mode);
  static at::Tensor einsum(std::string_view equation, at::TensorList tensors,
                           at::OptionalIntArrayRef path);
  static at::Tensor norm(const at::Tensor& self, const at::Scalar& p);
  static at::Tensor norm(const at::Tensor& self,
                         const std::optional<at::Scalar>& p,
                         at::IntArrayRef dim, bool keepdim);
  static at::Tensor sigmoid_backward(const at::Tensor& grad_output,
                                     const at::Tensor& output);
  static at::Tensor tanh_backward(const at::Tensor& grad_output,
                                  const at::Tensor& output);
  static at::Tensor view_as_real_copy(const at::Tensor& self);
};

namespace {

// Whether the stock binary, bringing `self` to the host, would drop its
// imaginary parts.
bool LosesParts(const at::Tensor& self) {
  return self.device().type() == at::kXLA &&
         self.scalar_type() == at::kComplexDouble;
}

// The host's copy.
at::Tensor BothParts(const at::Tensor& self) {
  return at::view_as_complex(at::view_as_real_copy(self).cpu());
}

}  // namespace

at::Tensor XLANativeFunctions::_copy_from(const at::Tensor& self,
                                          const at::Tensor& dst,
                                          bool non_blocking) {
  static auto* const stock =
      Stock(&XLANativeFunctions::_copy_from,
            "_ZN9torch_xla18XLANativeFunctions10_copy_fromERKN2at6TensorES4_b");
  if (LosesParts(self) && dst.device().is_cpu()) {
    at::Tensor result = dst;
    return result.copy_(BothParts(self));
  }
  return stock(self, dst, non_blocking);
}

at::Scalar XLANativeFunctions::_local_scalar_dense(const at::Tensor& self) {
  static auto* const stock = Stock(
      &XLANativeFunctions::_local_scalar_dense,
      "_ZN9torch_xla18XLANativeFunctions19_local_scalar_denseERKN2at6TensorE");
  return LosesParts(self) ? BothParts(self).item() : stock(self);
}

at::Tensor XLANativeFunctions::_to_copy(
    const at::Tensor& self, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout, std::optional<at::Device> device,
    std::optional<bool> pin_memory, bool non_blocking,
    std::optional<at::MemoryFormat> memory_format) {
  static auto* const stock = Stock(
      &XLANativeFunctions::_to_copy,
      "_ZN9torch_xla18XLANativeFunctions8_to_copyERKN2at6TensorESt8optionalIN3"
      "c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbEbS5_INS6_"
      "12MemoryFormatEE");
  if (LosesParts(self) && device.has_value() && device->is_cpu()) {
    return BothParts(self).to(dtype.value_or(at::kComplexDouble));
  }
  return stock(self, dtype, layout, device, pin_memory, non_blocking,
               memory_format);
}

// The stock function's result is complex.
at::Tensor XLANativeFunctions::abs(const at::Tensor& self) {
  static auto* const stock =
      Stock(&XLANativeFunctions::abs,
            "_ZN9torch_xla18XLANativeFunctions3absERKN2at6TensorE");
  return self.is_complex() ? OnCpu<at::_ops::abs>(self) : stock(self);
}

// The stock functions drop the imaginary parts.
at::Tensor XLANativeFunctions::div(const at::Tensor& self,
                                   const at::Scalar& other) {
  static auto* const stock = Stock<at::Tensor(const at::Tensor&,
                                              const at::Scalar&)>(
      &XLANativeFunctions::div,
      "_ZN9torch_xla18XLANativeFunctions3divERKN2at6TensorERKN3c106ScalarE");
  return self.is_complex() || other.isComplex()
             ? OnCpu<at::_ops::div_Scalar>(self, other)
             : stock(self, other);
}

at::Tensor XLANativeFunctions::div(
    const at::Tensor& self, const at::Tensor& other,
    std::optional<std::string_view> rounding_mode) {
  static auto* const stock = Stock<at::Tensor(
      const at::Tensor&, const at::Tensor&, std::optional<std::string_view>)>(
      &XLANativeFunctions::div,
      "_ZN9torch_xla18XLANativeFunctions3divERKN2at6TensorES4_St8optionalIS"
      "t17basic_string_viewIcSt11char_traitsIcEEE");
  if (self.is_complex() || other.is_complex()) {
    return OnCpu<at::_ops::div_Tensor_mode>(self, other, rounding_mode);
  }
  if (rounding_mode == "floor" &&
      at::isFloatingType(at::result_type(self, other))) {
    return FloorDivided(self, other);
  }
  return stock(self, other, rounding_mode);
}

// The stock function's gradient is not that of complex numbers.
at::Tensor XLANativeFunctions::einsum(std::string_view equation,
                                      at::TensorList tensors,
                                      at::OptionalIntArrayRef path) {
  static auto* const stock =
      Stock(&XLANativeFunctions::einsum,
            "_ZN9torch_xla18XLANativeFunctions6einsumESt17basic_string_viewIcS"
            "t11char_traitsIcEEN3c108ArrayRefIN2at6TensorEEENS5_16OptionalArray"
            "RefIlEE");
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_complex()) return at::native::einsum(equation, tensors, path);
  }
  return stock(equation, tensors, path);
}

// The stock functions' results are complex.
at::Tensor XLANativeFunctions::norm(const at::Tensor& self,
                                    const at::Scalar& p) {
  static auto* const stock = Stock<at::Tensor(const at::Tensor&,
                                              const at::Scalar&)>(
      &XLANativeFunctions::norm,
      "_ZN9torch_xla18XLANativeFunctions4normERKN2at6TensorERKN3c106ScalarE");
  return self.is_complex() ? OnCpu<at::_ops::norm_Scalar>(self, p)
                           : stock(self, p);
}

at::Tensor XLANativeFunctions::norm(const at::Tensor& self,
                                    const std::optional<at::Scalar>& p,
                                    at::IntArrayRef dim, bool keepdim) {
  static auto* const stock =
      Stock<at::Tensor(const at::Tensor&, const std::optional<at::Scalar>&,
                       at::IntArrayRef, bool)>(
          &XLANativeFunctions::norm,
          "_ZN9torch_xla18XLANativeFunctions4normERKN2at6TensorERKSt8optionalIN"
          "3c106ScalarEENS6_8ArrayRefIlEEb");
  return self.is_complex()
             ? OnCpu<at::_ops::norm_ScalarOpt_dim>(self, p, dim, keepdim)
             : stock(self, p, dim, keepdim);
}

// The stock functions do not conjugate.
at::Tensor XLANativeFunctions::sigmoid_backward(const at::Tensor& grad_output,
                                                const at::Tensor& output) {
  static auto* const stock = Stock(
      &XLANativeFunctions::sigmoid_backward,
      "_ZN9torch_xla18XLANativeFunctions16sigmoid_backwardERKN2at6TensorES4_");
  return output.is_complex()
             ? OnCpu<at::_ops::sigmoid_backward>(grad_output, output)
             : stock(grad_output, output);
}

at::Tensor XLANativeFunctions::tanh_backward(const at::Tensor& grad_output,
                                             const at::Tensor& output) {
  static auto* const stock = Stock(
      &XLANativeFunctions::tanh_backward,
      "_ZN9torch_xla18XLANativeFunctions13tanh_backwardERKN2at6TensorES4_");
  return output.is_complex()
             ? OnCpu<at::_ops::tanh_backward>(grad_output, output)
             : stock(grad_output, output);
}

// The layout of the stock function's result lacks a dimension: a transposition
// of it ends the process.
at::Tensor XLANativeFunctions::view_as_real_copy(const at::Tensor& self) {
  static auto* const stock = Stock(
      &XLANativeFunctions::view_as_real_copy,
      "_ZN9torch_xla18XLANativeFunctions17view_as_real_copyERKN2at6TensorE");
  const at::Tensor result = stock(self);
  return at::view_copy(result, result.sizes());
}

}  // namespace torch_xla
