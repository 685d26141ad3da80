// torch_xla's kernels for aten_overrides/, as compiled into the upstream
// binary, and as the header declares them that upstream generates
// (torch_xla/csrc/XLANativeFunctions.h).
#ifndef TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_
#define TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_

#include <ATen/core/Generator.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace torch_xla {

struct XLANativeFunctions {
  static at::Tensor _adaptive_avg_pool2d(const at::Tensor& self,
                                         at::IntArrayRef output_size);
  static at::Tensor _adaptive_avg_pool3d(const at::Tensor& self,
                                         at::IntArrayRef output_size);
  static at::Tensor _cdist_forward(const at::Tensor& x1, const at::Tensor& x2,
                                   double p,
                                   std::optional<int64_t> compute_mode);
  static at::Tensor _copy_from(const at::Tensor& self, const at::Tensor& dst,
                               bool non_blocking);
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> _linalg_svd(
      const at::Tensor& self, bool full_matrices, bool compute_uv,
      std::optional<std::string_view> driver);
  static at::Scalar _local_scalar_dense(const at::Tensor& self);
  static at::Tensor _log_softmax(const at::Tensor& self, int64_t dim,
                                 bool half_to_float);
  static at::Tensor _log_softmax_backward_data(const at::Tensor& grad_output,
                                               const at::Tensor& output,
                                               int64_t dim,
                                               at::ScalarType input_dtype);
  static at::Tensor _pdist_forward(const at::Tensor& self, double p);
  static at::Tensor _softmax(const at::Tensor& self, int64_t dim,
                             bool half_to_float);
  static at::Tensor _softmax_backward_data(const at::Tensor& grad_output,
                                           const at::Tensor& output,
                                           int64_t dim,
                                           at::ScalarType input_dtype);
  static at::Tensor _to_copy(const at::Tensor& self,
                             std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout,
                             std::optional<at::Device> device,
                             std::optional<bool> pin_memory, bool non_blocking,
                             std::optional<at::MemoryFormat> memory_format);
  static std::vector<at::Tensor> _to_cpu(at::TensorList tensors);
  static at::Tensor abs(const at::Tensor& self);
  static at::Tensor acos(const at::Tensor& self);
  static at::Tensor acosh(const at::Tensor& self);
  static std::tuple<at::Tensor, at::Tensor> adaptive_max_pool2d(
      const at::Tensor& self, at::IntArrayRef output_size);
  static at::Tensor add(const at::Tensor& self, const at::Tensor& other,
                        const at::Scalar& alpha);
  static at::Tensor addcdiv(const at::Tensor& self, const at::Tensor& tensor1,
                            const at::Tensor& tensor2, const at::Scalar& value);
  static at::Tensor addcmul(const at::Tensor& self, const at::Tensor& tensor1,
                            const at::Tensor& tensor2, const at::Scalar& value);
  static at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1,
                          const at::Tensor& mat2, const at::Scalar& beta,
                          const at::Scalar& alpha);
  static at::Tensor all(const at::Tensor& self, int64_t dim, bool keepdim);
  static at::Tensor amax(const at::Tensor& self, at::IntArrayRef dim,
                         bool keepdim);
  static at::Tensor amin(const at::Tensor& self, at::IntArrayRef dim,
                         bool keepdim);
  static at::Tensor any(const at::Tensor& self, int64_t dim, bool keepdim);
  static at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end,
                                const at::Scalar& step, at::Tensor& out);
  static at::Tensor argmax(const at::Tensor& self, std::optional<int64_t> dim,
                           bool keepdim);
  static at::Tensor argmin(const at::Tensor& self, std::optional<int64_t> dim,
                           bool keepdim);
  static const at::Tensor& as_strided_(const at::Tensor& self,
                                       at::IntArrayRef size,
                                       at::IntArrayRef stride,
                                       std::optional<int64_t> storage_offset);
  static at::Tensor as_strided_scatter(const at::Tensor& self,
                                       const at::Tensor& src,
                                       at::IntArrayRef size,
                                       at::IntArrayRef stride,
                                       std::optional<int64_t> storage_offset);
  static at::Tensor asin(const at::Tensor& self);
  static at::Tensor asinh(const at::Tensor& self);
  static at::Tensor atan(const at::Tensor& self);
  static at::Tensor atan2(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor atanh(const at::Tensor& self);
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
  static at::Tensor bernoulli(const at::Tensor& self,
                              std::optional<at::Generator> generator);
  static at::Tensor bernoulli(const at::Tensor& self, double p,
                              std::optional<at::Generator> generator);
  static at::Tensor& bernoulli_(at::Tensor& self, const at::Tensor& p,
                                std::optional<at::Generator> generator);
  static at::Tensor binary_cross_entropy(
      const at::Tensor& self, const at::Tensor& target,
      const std::optional<at::Tensor>& weight, int64_t reduction);
  static at::Tensor binary_cross_entropy_backward(
      const at::Tensor& grad_output, const at::Tensor& self,
      const at::Tensor& target, const std::optional<at::Tensor>& weight,
      int64_t reduction);
  static at::Tensor bitwise_and(const at::Tensor& self,
                                const at::Tensor& other);
  static at::Tensor bitwise_left_shift(const at::Tensor& self,
                                       const at::Tensor& other);
  static at::Tensor bitwise_or(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor bitwise_right_shift(const at::Tensor& self,
                                        const at::Tensor& other);
  static at::Tensor bitwise_xor(const at::Tensor& self,
                                const at::Tensor& other);
  static at::Tensor celu(const at::Tensor& self, const at::Scalar& alpha);
  static at::Tensor constant_pad_nd(const at::Tensor& self, at::IntArrayRef pad,
                                    const at::Scalar& value);
  static at::Tensor cos(const at::Tensor& self);
  static at::Tensor cosh(const at::Tensor& self);
  static at::Tensor cumprod(const at::Tensor& self, int64_t dim,
                            std::optional<at::ScalarType> dtype);
  static at::Tensor cumsum(const at::Tensor& self, int64_t dim,
                           std::optional<at::ScalarType> dtype);
  static at::Tensor div(const at::Tensor& self, const at::Tensor& other,
                        std::optional<std::string_view> rounding_mode);
  static at::Tensor div(const at::Tensor& self, const at::Scalar& other);
  static at::Tensor einsum(std::string_view equation, at::TensorList tensors,
                           at::OptionalIntArrayRef path);
  static at::Tensor elu(const at::Tensor& self, const at::Scalar& alpha,
                        const at::Scalar& scale, const at::Scalar& input_scale);
  static at::Tensor elu_backward(const at::Tensor& grad_output,
                                 const at::Scalar& alpha,
                                 const at::Scalar& scale,
                                 const at::Scalar& input_scale, bool is_result,
                                 const at::Tensor& self_or_result);
  static at::Tensor eq(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor erf(const at::Tensor& self);
  static at::Tensor erfc(const at::Tensor& self);
  static at::Tensor erfinv(const at::Tensor& self);
  static at::Tensor exp(const at::Tensor& self);
  static at::Tensor expm1(const at::Tensor& self);
  static at::Tensor& exponential_(at::Tensor& self, double lambd,
                                  std::optional<at::Generator> generator);
  static at::Tensor flip(const at::Tensor& self, at::IntArrayRef dims);
  static at::Tensor fmod(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor full(at::IntArrayRef size, const at::Scalar& fill_value,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout,
                         std::optional<at::Device> device,
                         std::optional<bool> pin_memory);
  static at::Tensor gather(const at::Tensor& self, int64_t dim,
                           const at::Tensor& index, bool sparse_grad);
  static at::Tensor ge(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor gelu(const at::Tensor& self, std::string_view approximate);
  static at::Tensor gelu_backward(const at::Tensor& grad,
                                  const at::Tensor& self,
                                  std::string_view approximate);
  static at::Tensor glu(const at::Tensor& self, int64_t dim);
  static at::Tensor gt(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor hardsigmoid(const at::Tensor& self);
  static at::Tensor hardswish(const at::Tensor& self);
  static at::Tensor index(const at::Tensor& self,
                          const c10::List<std::optional<at::Tensor>>& indices);
  static at::Tensor index_add(const at::Tensor& self, int64_t dim,
                              const at::Tensor& index, const at::Tensor& source,
                              const at::Scalar& alpha);
  static at::Tensor index_copy(const at::Tensor& self, int64_t dim,
                               const at::Tensor& index,
                               const at::Tensor& source);
  static at::Tensor& index_fill_(at::Tensor& self, int64_t dim,
                                 const at::Tensor& index,
                                 const at::Scalar& value);
  static at::Tensor& index_fill_(at::Tensor& self, int64_t dim,
                                 const at::Tensor& index,
                                 const at::Tensor& value);
  static at::Tensor& index_put_(
      at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
      const at::Tensor& values, bool accumulate);
  static at::Tensor index_select(const at::Tensor& self, int64_t dim,
                                 const at::Tensor& index);
  static at::Tensor isnan(const at::Tensor& self);
  static at::Tensor isneginf(const at::Tensor& self);
  static std::tuple<at::Tensor, at::Tensor> kthvalue(const at::Tensor& self,
                                                     int64_t k, int64_t dim,
                                                     bool keepdim);
  static at::Tensor le(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor leaky_relu(const at::Tensor& self,
                               const at::Scalar& negative_slope);
  static at::Tensor leaky_relu_backward(const at::Tensor& grad_output,
                                        const at::Tensor& self,
                                        const at::Scalar& negative_slope,
                                        bool self_is_result);
  static std::tuple<at::Tensor, at::Tensor> linalg_inv_ex(
      const at::Tensor& self, bool check_errors);
  static at::Tensor linalg_vector_norm(const at::Tensor& self,
                                       const at::Scalar& ord,
                                       at::OptionalIntArrayRef dim,
                                       bool keepdim,
                                       std::optional<at::ScalarType> dtype);
  static at::Tensor cat(const at::ITensorListRef& tensors, int64_t dim);
  static at::Tensor linspace(const at::Scalar& start, const at::Scalar& end,
                             int64_t steps, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout,
                             std::optional<at::Device> device,
                             std::optional<bool> pin_memory);
  static at::Tensor log10(const at::Tensor& self);
  static at::Tensor log2(const at::Tensor& self);
  static at::Tensor logit(const at::Tensor& self, std::optional<double> eps);
  static at::Tensor lt(const at::Tensor& self, const at::Tensor& other);
  static std::tuple<at::Tensor, at::Tensor> max(const at::Tensor& self,
                                                int64_t dim, bool keepdim);
  static at::Tensor max_pool2d(const at::Tensor& self,
                               at::IntArrayRef kernel_size,
                               at::IntArrayRef stride, at::IntArrayRef padding,
                               at::IntArrayRef dilation, bool ceil_mode);
  static std::tuple<at::Tensor, at::Tensor> max_pool2d_with_indices(
      const at::Tensor& self, at::IntArrayRef kernel_size,
      at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
      bool ceil_mode);
  static at::Tensor max_pool2d_with_indices_backward(
      const at::Tensor& grad_output, const at::Tensor& self,
      at::IntArrayRef kernel_size, at::IntArrayRef stride,
      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
      const at::Tensor& indices);
  static at::Tensor max_pool3d(const at::Tensor& self,
                               at::IntArrayRef kernel_size,
                               at::IntArrayRef stride, at::IntArrayRef padding,
                               at::IntArrayRef dilation, bool ceil_mode);
  static std::tuple<at::Tensor, at::Tensor> max_pool3d_with_indices(
      const at::Tensor& self, at::IntArrayRef kernel_size,
      at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
      bool ceil_mode);
  static at::Tensor max_pool3d_with_indices_backward(
      const at::Tensor& grad_output, const at::Tensor& self,
      at::IntArrayRef kernel_size, at::IntArrayRef stride,
      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
      const at::Tensor& indices);
  static at::Tensor maximum(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor mean(const at::Tensor& self,
                         std::optional<at::ScalarType> dtype);
  static at::Tensor mean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                         bool keepdim, std::optional<at::ScalarType> dtype);
  static std::tuple<at::Tensor, at::Tensor> min(const at::Tensor& self,
                                                int64_t dim, bool keepdim);
  static at::Tensor minimum(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor mish(const at::Tensor& self);
  static at::Tensor mse_loss(const at::Tensor& self, const at::Tensor& target,
                             int64_t reduction);
  static at::Tensor mse_loss_backward(const at::Tensor& grad_output,
                                      const at::Tensor& self,
                                      const at::Tensor& target,
                                      int64_t reduction);
  static at::Tensor mul(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor multinomial(const at::Tensor& self, int64_t num_samples,
                                bool replacement,
                                std::optional<at::Generator> generator);
  static at::Tensor nan_to_num(const at::Tensor& self,
                               std::optional<double> nan,
                               std::optional<double> posinf,
                               std::optional<double> neginf);
  static at::Tensor ne(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor nll_loss2d_backward(const at::Tensor& grad_output,
                                        const at::Tensor& self,
                                        const at::Tensor& target,
                                        const std::optional<at::Tensor>& weight,
                                        int64_t reduction, int64_t ignore_index,
                                        const at::Tensor& total_weight);
  static at::Tensor nll_loss_backward(const at::Tensor& grad_output,
                                      const at::Tensor& self,
                                      const at::Tensor& target,
                                      const std::optional<at::Tensor>& weight,
                                      int64_t reduction, int64_t ignore_index,
                                      const at::Tensor& total_weight);
  static at::Tensor norm(const at::Tensor& self,
                         const std::optional<at::Scalar>& p,
                         at::ScalarType dtype);
  static at::Tensor norm(const at::Tensor& self, const at::Scalar& p);
  static at::Tensor norm(const at::Tensor& self,
                         const std::optional<at::Scalar>& p,
                         at::IntArrayRef dim, bool keepdim,
                         at::ScalarType dtype);
  static at::Tensor norm(const at::Tensor& self,
                         const std::optional<at::Scalar>& p,
                         at::IntArrayRef dim, bool keepdim);
  static at::Tensor normal(const at::Tensor& mean, const at::Tensor& std,
                           std::optional<at::Generator> generator);
  static at::Tensor pow(const at::Tensor& self, const at::Scalar& exponent);
  static at::Tensor pow(const at::Tensor& self, const at::Tensor& exponent);
  static at::Tensor pow(const at::Scalar& self, const at::Tensor& exponent);
  static at::Tensor prod(const at::Tensor& self, int64_t dim, bool keepdim,
                         std::optional<at::ScalarType> dtype);
  static at::Tensor randperm(int64_t n, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout,
                             std::optional<at::Device> device,
                             std::optional<bool> pin_memory);
  static at::Tensor reciprocal(const at::Tensor& self);
  static at::Tensor reflection_pad1d(const at::Tensor& self,
                                     at::IntArrayRef padding);
  static at::Tensor reflection_pad1d_backward(const at::Tensor& grad_output,
                                              const at::Tensor& self,
                                              at::IntArrayRef padding);
  static at::Tensor reflection_pad2d(const at::Tensor& self,
                                     at::IntArrayRef padding);
  static at::Tensor reflection_pad2d_backward(const at::Tensor& grad_output,
                                              const at::Tensor& self,
                                              at::IntArrayRef padding);
  static at::Tensor reflection_pad3d(const at::Tensor& self,
                                     at::IntArrayRef padding);
  static at::Tensor reflection_pad3d_backward(const at::Tensor& grad_output,
                                              const at::Tensor& self,
                                              at::IntArrayRef padding);
  static at::Tensor remainder(const at::Tensor& self, const at::Tensor& other);
  static at::Tensor repeat(const at::Tensor& self, at::IntArrayRef repeats);
  static at::Tensor replication_pad1d(const at::Tensor& self,
                                      at::IntArrayRef padding);
  static at::Tensor replication_pad1d_backward(const at::Tensor& grad_output,
                                               const at::Tensor& self,
                                               at::IntArrayRef padding);
  static at::Tensor replication_pad2d(const at::Tensor& self,
                                      at::IntArrayRef padding);
  static at::Tensor replication_pad2d_backward(const at::Tensor& grad_output,
                                               const at::Tensor& self,
                                               at::IntArrayRef padding);
  static at::Tensor replication_pad3d(const at::Tensor& self,
                                      at::IntArrayRef padding);
  static at::Tensor replication_pad3d_backward(const at::Tensor& grad_output,
                                               const at::Tensor& self,
                                               at::IntArrayRef padding);
  static at::Tensor roll(const at::Tensor& self, at::IntArrayRef shifts,
                         at::IntArrayRef dims);
  static at::Tensor rsqrt(const at::Tensor& self);
  static at::Tensor rsub(const at::Tensor& self, const at::Tensor& other,
                         const at::Scalar& alpha);
  static at::Tensor scatter(const at::Tensor& self, int64_t dim,
                            const at::Tensor& index, const at::Tensor& src);
  static at::Tensor scatter(const at::Tensor& self, int64_t dim,
                            const at::Tensor& index, const at::Scalar& value);
  static at::Tensor scatter(const at::Tensor& self, int64_t dim,
                            const at::Tensor& index, const at::Tensor& src,
                            std::string_view reduce);
  static at::Tensor scatter(const at::Tensor& self, int64_t dim,
                            const at::Tensor& index, const at::Scalar& value,
                            std::string_view reduce);
  static at::Tensor scatter_add(const at::Tensor& self, int64_t dim,
                                const at::Tensor& index, const at::Tensor& src);
  static at::Tensor scatter_reduce(const at::Tensor& self, int64_t dim,
                                   const at::Tensor& index,
                                   const at::Tensor& src,
                                   std::string_view reduce, bool include_self);
  static at::Tensor sigmoid(const at::Tensor& self);
  static at::Tensor sigmoid_backward(const at::Tensor& grad_output,
                                     const at::Tensor& output);
  static at::Tensor silu(const at::Tensor& self);
  static at::Tensor sin(const at::Tensor& self);
  static at::Tensor sinh(const at::Tensor& self);
  static at::Tensor slice_copy(const at::Tensor& self, int64_t dim,
                               std::optional<int64_t> start,
                               std::optional<int64_t> end, int64_t step);
  static at::Tensor slice_scatter(const at::Tensor& base,
                                  const at::Tensor& mutated_view, int64_t dim,
                                  std::optional<int64_t> start,
                                  std::optional<int64_t> end, int64_t step);
  static at::Tensor smooth_l1_loss(const at::Tensor& self,
                                   const at::Tensor& target, int64_t reduction,
                                   double beta);
  static at::Tensor smooth_l1_loss_backward(const at::Tensor& grad_output,
                                            const at::Tensor& self,
                                            const at::Tensor& target,
                                            int64_t reduction, double beta);
  static at::Tensor softplus(const at::Tensor& self, const at::Scalar& beta,
                             const at::Scalar& threshold);
  static std::tuple<at::Tensor, at::Tensor> sort(const at::Tensor& self,
                                                 int64_t dim, bool descending);
  static std::tuple<at::Tensor, at::Tensor> sort(const at::Tensor& self,
                                                 std::optional<bool> stable,
                                                 int64_t dim, bool descending);
  static at::Tensor sqrt(const at::Tensor& self);
  static at::Tensor squeeze_copy(const at::Tensor& self, int64_t dim);
  static at::Tensor squeeze_copy(const at::Tensor& self, at::IntArrayRef dim);
  static at::Tensor std(const at::Tensor& self, at::OptionalIntArrayRef dim,
                        const std::optional<at::Scalar>& correction,
                        bool keepdim);
  static std::tuple<at::Tensor, at::Tensor> std_mean(
      const at::Tensor& self, at::OptionalIntArrayRef dim,
      const std::optional<at::Scalar>& correction, bool keepdim);
  static at::Tensor sub(const at::Tensor& self, const at::Tensor& other,
                        const at::Scalar& alpha);
  static at::Tensor sum(const at::Tensor& self, at::OptionalIntArrayRef dim,
                        bool keepdim, std::optional<at::ScalarType> dtype);
  static at::Tensor tan(const at::Tensor& self);
  static at::Tensor tanh(const at::Tensor& self);
  static at::Tensor tanh_backward(const at::Tensor& grad_output,
                                  const at::Tensor& output);
  static std::tuple<at::Tensor, at::Tensor> topk(const at::Tensor& self,
                                                 int64_t k, int64_t dim,
                                                 bool largest, bool sorted);
  static at::Tensor trace(const at::Tensor& self);
  static at::Tensor& uniform_(at::Tensor& self, double from, double to,
                              std::optional<at::Generator> generator);
  static at::Tensor upsample_nearest2d(const at::Tensor& self,
                                       at::IntArrayRef output_size,
                                       std::optional<double> scales_h,
                                       std::optional<double> scales_w);
  static at::Tensor var(const at::Tensor& self, at::OptionalIntArrayRef dim,
                        const std::optional<at::Scalar>& correction,
                        bool keepdim);
  static std::tuple<at::Tensor, at::Tensor> var_mean(
      const at::Tensor& self, at::OptionalIntArrayRef dim,
      const std::optional<at::Scalar>& correction, bool keepdim);
  static at::Tensor view_as_real_copy(const at::Tensor& self);
  static at::Tensor where(const at::Tensor& condition, const at::Tensor& self,
                          const at::Tensor& other);
  static at::Tensor xlogy(const at::Tensor& self, const at::Tensor& other);
};

// Registers these kernels with PyTorch's dispatcher, the first time.
bool InitXlaBackend();

// Runs an operator on the CPU: copies its operands to the host, and its results
// back.
void xla_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_
