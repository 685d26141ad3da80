// torch_xla's kernels for aten_overrides/, as compiled into the upstream
// binary, and as upstream's generated header declares them
// (torch_xla/csrc/XLANativeFunctions.h).
#ifndef TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_
#define TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_

#include <ATen/Operators.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>

namespace torch_xla {

// The type of torch_xla's kernel of an operator: the operator's type with
// int64_t in place of c10::SymInt.
template <typename T>
struct WithNumbersForSizes {
  using type = T;
};
template <>
struct WithNumbersForSizes<c10::SymInt> {
  using type = int64_t;
};
template <>
struct WithNumbersForSizes<std::optional<c10::SymInt>> {
  using type = std::optional<int64_t>;
};
template <>
struct WithNumbersForSizes<c10::SymIntArrayRef> {
  using type = at::IntArrayRef;
};
template <>
struct WithNumbersForSizes<at::OptionalSymIntArrayRef> {
  using type = at::OptionalIntArrayRef;
};
template <typename Result, typename... Args>
struct WithNumbersForSizes<Result(Args...)> {
  using type = Result(typename WithNumbersForSizes<Args>::type...);
};
template <typename Op>
using KernelOf = typename WithNumbersForSizes<typename Op::schema>::type;

// The kernels that have an operator's name, and those of other overloads.
// clang-format off
#define TORCH_XLA_EXT_KERNELS(KERNEL)                                          \
  KERNEL(_adaptive_avg_pool2d) KERNEL(_adaptive_avg_pool3d)                    \
  KERNEL(_cdist_forward) KERNEL(_copy_from) KERNEL(_copy_from_and_resize)      \
  KERNEL(_linalg_eigh) KERNEL(_linalg_svd) KERNEL(_local_scalar_dense)         \
  KERNEL(_log_softmax) KERNEL(_log_softmax_backward_data)                      \
  KERNEL(_pdist_forward) KERNEL(_softmax) KERNEL(_softmax_backward_data)       \
  KERNEL(_to_copy) KERNEL(_to_cpu) KERNEL(abs) KERNEL(acos) KERNEL(acosh)      \
  KERNEL(adaptive_max_pool2d) KERNEL(addcdiv) KERNEL(addcmul) KERNEL(addmm)    \
  KERNEL(amax) KERNEL(amin) KERNEL(argmax) KERNEL(argmin) KERNEL(as_strided)   \
  KERNEL(as_strided_) KERNEL(as_strided_scatter) KERNEL(asin) KERNEL(asinh)    \
  KERNEL(atan) KERNEL(atan2) KERNEL(atanh) KERNEL(avg_pool2d)                  \
  KERNEL(avg_pool2d_backward) KERNEL(avg_pool3d) KERNEL(bernoulli) KERNEL(cat) \
  KERNEL(constant_pad_nd) KERNEL(cos) KERNEL(cosh) KERNEL(cumprod)             \
  KERNEL(cumsum) KERNEL(einsum) KERNEL(elu_backward) KERNEL(erf) KERNEL(erfc)  \
  KERNEL(erfinv) KERNEL(exp) KERNEL(expm1) KERNEL(exponential_) KERNEL(flip)   \
  KERNEL(full) KERNEL(gather) KERNEL(gelu) KERNEL(gelu_backward) KERNEL(glu)   \
  KERNEL(hardshrink_backward) KERNEL(hardsigmoid) KERNEL(hardswish)            \
  KERNEL(index_add) KERNEL(index_copy) KERNEL(index_put_) KERNEL(index_select) \
  KERNEL(isnan) KERNEL(isneginf) KERNEL(kthvalue) KERNEL(leaky_relu)           \
  KERNEL(leaky_relu_backward) KERNEL(linalg_inv_ex) KERNEL(linalg_vector_norm) \
  KERNEL(linspace) KERNEL(log10) KERNEL(log1p) KERNEL(log2)                    \
  KERNEL(logical_and) KERNEL(logical_not) KERNEL(logical_or)                   \
  KERNEL(logical_xor) KERNEL(logit) KERNEL(max_pool2d)                         \
  KERNEL(max_pool2d_with_indices) KERNEL(max_pool2d_with_indices_backward)     \
  KERNEL(max_pool3d) KERNEL(max_pool3d_with_indices)                           \
  KERNEL(max_pool3d_with_indices_backward) KERNEL(maximum) KERNEL(mean)        \
  KERNEL(minimum) KERNEL(mish) KERNEL(mse_loss) KERNEL(mse_loss_backward)      \
  KERNEL(multinomial) KERNEL(nan_to_num) KERNEL(nll_loss2d_backward)           \
  KERNEL(nll_loss_backward) KERNEL(randperm) KERNEL(reciprocal)                \
  KERNEL(reflection_pad1d) KERNEL(reflection_pad1d_backward)                   \
  KERNEL(reflection_pad2d) KERNEL(reflection_pad2d_backward)                   \
  KERNEL(reflection_pad3d) KERNEL(reflection_pad3d_backward) KERNEL(repeat)    \
  KERNEL(replication_pad1d) KERNEL(replication_pad1d_backward)                 \
  KERNEL(replication_pad2d) KERNEL(replication_pad2d_backward)                 \
  KERNEL(replication_pad3d) KERNEL(replication_pad3d_backward) KERNEL(roll)    \
  KERNEL(rsqrt) KERNEL(scatter_add) KERNEL(sigmoid) KERNEL(sigmoid_backward)   \
  KERNEL(silu) KERNEL(sin) KERNEL(sinh) KERNEL(slice_scatter)                  \
  KERNEL(smooth_l1_loss) KERNEL(smooth_l1_loss_backward) KERNEL(softplus)      \
  KERNEL(softshrink_backward) KERNEL(sort) KERNEL(sqrt) KERNEL(tan)            \
  KERNEL(tanh) KERNEL(tanh_backward)                                           \
  KERNEL(topk) KERNEL(trace) KERNEL(uniform_) KERNEL(upsample_nearest2d)       \
  KERNEL(view_as_real_copy)
// clang-format on

struct XLANativeFunctions {
#define TORCH_XLA_EXT_KERNEL(name) static KernelOf<at::_ops::name> name;
  TORCH_XLA_EXT_KERNELS(TORCH_XLA_EXT_KERNEL)
#undef TORCH_XLA_EXT_KERNEL
  static KernelOf<at::_ops::add_Tensor> add;
  static KernelOf<at::_ops::all> all;
  static KernelOf<at::_ops::all_dim> all;
  static KernelOf<at::_ops::any> any;
  static KernelOf<at::_ops::any_dim> any;
  static KernelOf<at::_ops::arange_start_out> arange_out;
  static KernelOf<at::_ops::bernoulli_p> bernoulli;
  static KernelOf<at::_ops::bernoulli__Tensor> bernoulli_;
  static KernelOf<at::_ops::bitwise_and_Tensor> bitwise_and;
  static KernelOf<at::_ops::bitwise_left_shift_Tensor> bitwise_left_shift;
  static KernelOf<at::_ops::bitwise_or_Tensor> bitwise_or;
  static KernelOf<at::_ops::bitwise_right_shift_Tensor> bitwise_right_shift;
  static KernelOf<at::_ops::bitwise_xor_Tensor> bitwise_xor;
  static KernelOf<at::_ops::div_Tensor_mode> div;
  static KernelOf<at::_ops::div_Scalar> div;
  static KernelOf<at::_ops::eq_Tensor> eq;
  static KernelOf<at::_ops::fmod_Tensor> fmod;
  static KernelOf<at::_ops::ge_Tensor> ge;
  static KernelOf<at::_ops::gt_Tensor> gt;
  static KernelOf<at::_ops::index_Tensor> index;
  static KernelOf<at::_ops::index_fill__int_Scalar> index_fill_;
  static KernelOf<at::_ops::index_fill__int_Tensor> index_fill_;
  static KernelOf<at::_ops::le_Tensor> le;
  static KernelOf<at::_ops::lt_Tensor> lt;
  static KernelOf<at::_ops::masked_fill_Tensor> masked_fill;
  static KernelOf<at::_ops::max_dim> max;
  static KernelOf<at::_ops::mean_dim> mean;
  static KernelOf<at::_ops::min_dim> min;
  static KernelOf<at::_ops::mul_Tensor> mul;
  static KernelOf<at::_ops::ne_Tensor> ne;
  static KernelOf<at::_ops::norm_ScalarOpt_dtype> norm;
  static KernelOf<at::_ops::norm_Scalar> norm;
  static KernelOf<at::_ops::norm_ScalarOpt_dim_dtype> norm;
  static KernelOf<at::_ops::norm_ScalarOpt_dim> norm;
  static KernelOf<at::_ops::normal_Tensor_Tensor> normal;
  static KernelOf<at::_ops::pow_Tensor_Scalar> pow;
  static KernelOf<at::_ops::pow_Tensor_Tensor> pow;
  static KernelOf<at::_ops::pow_Scalar> pow;
  static KernelOf<at::_ops::prod_dim_int> prod;
  static KernelOf<at::_ops::remainder_Tensor> remainder;
  static KernelOf<at::_ops::rsub_Tensor> rsub;
  static KernelOf<at::_ops::scatter_src> scatter;
  static KernelOf<at::_ops::scatter_value> scatter;
  static KernelOf<at::_ops::scatter_reduce> scatter;
  static KernelOf<at::_ops::scatter_value_reduce> scatter;
  static KernelOf<at::_ops::scatter_reduce_two> scatter_reduce;
  static KernelOf<at::_ops::slice_copy_Tensor> slice_copy;
  static KernelOf<at::_ops::sort_stable> sort;
  static KernelOf<at::_ops::squeeze_copy_dim> squeeze_copy;
  static KernelOf<at::_ops::squeeze_copy_dims> squeeze_copy;
  static KernelOf<at::_ops::std_correction> std;
  static KernelOf<at::_ops::std_mean_correction> std_mean;
  static KernelOf<at::_ops::sub_Tensor> sub;
  static KernelOf<at::_ops::sum_dim_IntList> sum;
  static KernelOf<at::_ops::var_correction> var;
  static KernelOf<at::_ops::var_mean_correction> var_mean;
  static KernelOf<at::_ops::where_self> where;
  static KernelOf<at::_ops::xlogy_Tensor> xlogy;
};

// Registers these kernels with PyTorch's dispatcher, the first time.
bool InitXlaBackend();

// Runs an operator on the CPU: copies its operands to the host, and its results
// back.
void xla_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_NATIVE_FUNCTIONS_H_
