// Interposes on operators of torch_xla that compute wrong numbers for some
// options. With these options they run on the CPU.
//
// This works because the stock binary calls them through its PLT.
#include <ATen/ATen.h>
#include <ATen/Operators.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/front/abi/absl.h"
#include "torch_xla_ext/csrc/front/on_cpu.h"
#include "torch_xla_ext/csrc/front/stock.h"

namespace torch_xla {

struct XLANativeFunctions {
  static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
  _embedding_bag_forward_only(
      const at::Tensor& weight, const at::Tensor& indices,
      const at::Tensor& offsets, bool scale_grad_by_freq, int64_t mode,
      bool sparse, const std::optional<at::Tensor>& per_sample_weights,
      bool include_last_offset, int64_t padding_idx);
  static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
  _linalg_slogdet(const at::Tensor& self);
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> _linalg_svd(
      const at::Tensor& self, bool full_matrices, bool compute_uv,
      std::optional<std::string_view> driver);
  static at::Tensor _pdist_forward(const at::Tensor& self, double p);
  static at::Tensor as_strided_scatter(const at::Tensor& self,
                                       const at::Tensor& src,
                                       at::IntArrayRef size,
                                       at::IntArrayRef stride,
                                       std::optional<int64_t> storage_offset);
  static at::Tensor avg_pool2d(const at::Tensor& self,
                               at::IntArrayRef kernel_size,
                               at::IntArrayRef stride, at::IntArrayRef padding,
                               bool ceil_mode, bool count_include_pad,
                               std::optional<int64_t> divisor_override);
  static at::Tensor avg_pool3d(const at::Tensor& self,
                               at::IntArrayRef kernel_size,
                               at::IntArrayRef stride, at::IntArrayRef padding,
                               bool ceil_mode, bool count_include_pad,
                               std::optional<int64_t> divisor_override);
};

namespace {

// Whether the elements of a view are contiguous in memory, in some order of its
// dimensions.
bool IsDense(at::IntArrayRef size, at::IntArrayRef stride) {
  std::vector<std::tuple<int64_t, int64_t>> dimensions;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] != 1) dimensions.emplace_back(stride[i], size[i]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  for (const auto& [step, count] : dimensions) {
    if (step != expected) return false;
    expected *= count;
  }
  return true;
}

// The stock functions ignore `divisor`, or use it wrongly: for integers,
// without count_include_pad, and with ceil_mode.
template <typename Operator, typename Function>
at::Tensor AveragePool(Function* stock, const at::Tensor& self,
                       at::IntArrayRef kernel_size, at::IntArrayRef stride,
                       at::IntArrayRef padding, bool ceil_mode,
                       bool count_include_pad, std::optional<int64_t> divisor) {
  if (divisor.has_value() &&
      (ceil_mode || !at::isFloatingType(self.scalar_type()))) {
    return OnCpu<Operator>(self, kernel_size, stride, padding, ceil_mode,
                           count_include_pad, divisor);
  }
  return stock(self, kernel_size, stride, padding, ceil_mode,
               count_include_pad || divisor.has_value(), divisor);
}

}  // namespace

// The stock function's maximum of negative numbers only, or of an empty bag, is
// wrong.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
XLANativeFunctions::_embedding_bag_forward_only(
    const at::Tensor& weight, const at::Tensor& indices,
    const at::Tensor& offsets, bool scale_grad_by_freq, int64_t mode,
    bool sparse, const std::optional<at::Tensor>& per_sample_weights,
    bool include_last_offset, int64_t padding_idx) {
  constexpr int64_t kMax = 2;
  if (mode == kMax) {
    return OnCpu<at::_ops::_embedding_bag_forward_only>(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse,
        per_sample_weights, include_last_offset, padding_idx);
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::_embedding_bag_forward_only,
            "_ZN9torch_xla18XLANativeFunctions27_embedding_bag_forward_onlyERKN"
            "2at6TensorES4_S4_blbRKSt8optionalIS2_Ebl");
  return stock(weight, indices, offsets, scale_grad_by_freq, mode, sparse,
               per_sample_weights, include_last_offset, padding_idx);
}

// The stock function does not return the factors that the gradient needs.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
XLANativeFunctions::_linalg_slogdet(const at::Tensor& self) {
  return OnCpu<at::_ops::_linalg_slogdet>(self);
}

// The stock function treats a batch's shapes as those of a single matrix.
std::tuple<at::Tensor, at::Tensor, at::Tensor> XLANativeFunctions::_linalg_svd(
    const at::Tensor& self, bool full_matrices, bool compute_uv,
    std::optional<std::string_view> driver) {
  if (self.dim() > 2) {
    return OnCpu<at::_ops::_linalg_svd>(self, full_matrices, compute_uv,
                                        driver);
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::_linalg_svd,
            "_ZN9torch_xla18XLANativeFunctions11_linalg_svdERKN2at6TensorEbbSt8"
            "optionalISt17basic_string_viewIcSt11char_traitsIcEEE");
  return stock(self, full_matrices, compute_uv, driver);
}

// The stock function takes the p-th root also where p is 0 or infinite.
at::Tensor XLANativeFunctions::_pdist_forward(const at::Tensor& self,
                                              double p) {
  if (p == 0 || std::isinf(p)) return OnCpu<at::_ops::_pdist_forward>(self, p);
  static auto* const stock = Stock(
      &XLANativeFunctions::_pdist_forward,
      "_ZN9torch_xla18XLANativeFunctions14_pdist_forwardERKN2at6TensorEd");
  return stock(self, p);
}

// The stock function writes to consecutive elements, whatever the strides are.
at::Tensor XLANativeFunctions::as_strided_scatter(
    const at::Tensor& self, const at::Tensor& src, at::IntArrayRef size,
    at::IntArrayRef stride, std::optional<int64_t> storage_offset) {
  if (!IsDense(size, stride)) {
    return OnCpu<at::_ops::as_strided_scatter>(self, src, size, stride,
                                               storage_offset);
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::as_strided_scatter,
            "_ZN9torch_xla18XLANativeFunctions18as_strided_scatterERKN2at6Tenso"
            "rES4_N3c108ArrayRefIlEES7_St8optionalIlE");
  return stock(self, src, size, stride, storage_offset);
}

// Whether an adaptive pool is lowered. The stock function divides by the sizes
// of the output.
bool IsSupportedAdaptivePool(absl::Span<const int64_t> input_size,
                             absl::Span<const int64_t> output_size,
                             int pool_dim) {
  static auto* const stock =
      Stock(&IsSupportedAdaptivePool,
            "_ZN9torch_xla23IsSupportedAdaptivePoolEN4absl12lts_202308024SpanIK"
            "lEES4_i");
  const bool has_elements = std::all_of(output_size.begin(), output_size.end(),
                                        [](int64_t size) { return size > 0; });
  return has_elements && stock(input_size, output_size, pool_dim);
}

at::Tensor XLANativeFunctions::avg_pool2d(
    const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
    at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
    std::optional<int64_t> divisor_override) {
  static auto* const stock =
      Stock(&XLANativeFunctions::avg_pool2d,
            "_ZN9torch_xla18XLANativeFunctions10avg_pool2dERKN2at6TensorEN3c108"
            "ArrayRefIlEES7_S7_bbSt8optionalIlE");
  return AveragePool<at::_ops::avg_pool2d>(stock, self, kernel_size, stride,
                                           padding, ceil_mode,
                                           count_include_pad, divisor_override);
}

at::Tensor XLANativeFunctions::avg_pool3d(
    const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
    at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
    std::optional<int64_t> divisor_override) {
  static auto* const stock =
      Stock(&XLANativeFunctions::avg_pool3d,
            "_ZN9torch_xla18XLANativeFunctions10avg_pool3dERKN2at6TensorEN3c108"
            "ArrayRefIlEES7_S7_bbSt8optionalIlE");
  return AveragePool<at::_ops::avg_pool3d>(stock, self, kernel_size, stride,
                                           padding, ceil_mode,
                                           count_include_pad, divisor_override);
}

}  // namespace torch_xla
