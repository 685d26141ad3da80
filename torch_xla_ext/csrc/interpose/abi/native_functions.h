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

struct XLANativeFunctions {
  static KernelOf<at::_ops::_adaptive_avg_pool2d> _adaptive_avg_pool2d;
  static KernelOf<at::_ops::_adaptive_avg_pool3d> _adaptive_avg_pool3d;
  static KernelOf<at::_ops::_cdist_forward> _cdist_forward;
  static KernelOf<at::_ops::_copy_from> _copy_from;
  static KernelOf<at::_ops::_copy_from_and_resize> _copy_from_and_resize;
  static KernelOf<at::_ops::_linalg_svd> _linalg_svd;
  static KernelOf<at::_ops::_local_scalar_dense> _local_scalar_dense;
  static KernelOf<at::_ops::_log_softmax> _log_softmax;
  static KernelOf<at::_ops::_log_softmax_backward_data>
      _log_softmax_backward_data;
  static KernelOf<at::_ops::_pdist_forward> _pdist_forward;
  static KernelOf<at::_ops::_softmax> _softmax;
  static KernelOf<at::_ops::_softmax_backward_data> _softmax_backward_data;
  static KernelOf<at::_ops::_to_copy> _to_copy;
  static KernelOf<at::_ops::_to_cpu> _to_cpu;
  static KernelOf<at::_ops::abs> abs;
  static KernelOf<at::_ops::acos> acos;
  static KernelOf<at::_ops::acosh> acosh;
  static KernelOf<at::_ops::adaptive_max_pool2d> adaptive_max_pool2d;
  static KernelOf<at::_ops::add_Tensor> add;
  static KernelOf<at::_ops::addcdiv> addcdiv;
  static KernelOf<at::_ops::addcmul> addcmul;
  static KernelOf<at::_ops::addmm> addmm;
  static KernelOf<at::_ops::all_dim> all;
  static KernelOf<at::_ops::amax> amax;
  static KernelOf<at::_ops::amin> amin;
  static KernelOf<at::_ops::any_dim> any;
  static KernelOf<at::_ops::arange_start_out> arange_out;
  static KernelOf<at::_ops::argmax> argmax;
  static KernelOf<at::_ops::argmin> argmin;
  static KernelOf<at::_ops::as_strided> as_strided;
  static KernelOf<at::_ops::as_strided_> as_strided_;
  static KernelOf<at::_ops::as_strided_scatter> as_strided_scatter;
  static KernelOf<at::_ops::asin> asin;
  static KernelOf<at::_ops::asinh> asinh;
  static KernelOf<at::_ops::atan> atan;
  static KernelOf<at::_ops::atan2> atan2;
  static KernelOf<at::_ops::atanh> atanh;
  static KernelOf<at::_ops::avg_pool2d> avg_pool2d;
  static KernelOf<at::_ops::avg_pool3d> avg_pool3d;
  static KernelOf<at::_ops::bernoulli> bernoulli;
  static KernelOf<at::_ops::bernoulli_p> bernoulli;
  static KernelOf<at::_ops::bernoulli__Tensor> bernoulli_;
  static KernelOf<at::_ops::binary_cross_entropy> binary_cross_entropy;
  static KernelOf<at::_ops::binary_cross_entropy_backward>
      binary_cross_entropy_backward;
  static KernelOf<at::_ops::bitwise_and_Tensor> bitwise_and;
  static KernelOf<at::_ops::bitwise_left_shift_Tensor> bitwise_left_shift;
  static KernelOf<at::_ops::bitwise_or_Tensor> bitwise_or;
  static KernelOf<at::_ops::bitwise_right_shift_Tensor> bitwise_right_shift;
  static KernelOf<at::_ops::bitwise_xor_Tensor> bitwise_xor;
  static KernelOf<at::_ops::celu> celu;
  static KernelOf<at::_ops::cholesky> cholesky;
  static KernelOf<at::_ops::constant_pad_nd> constant_pad_nd;
  static KernelOf<at::_ops::cos> cos;
  static KernelOf<at::_ops::cosh> cosh;
  static KernelOf<at::_ops::cumprod> cumprod;
  static KernelOf<at::_ops::cumsum> cumsum;
  static KernelOf<at::_ops::div_Tensor_mode> div;
  static KernelOf<at::_ops::div_Scalar> div;
  static KernelOf<at::_ops::einsum> einsum;
  static KernelOf<at::_ops::elu> elu;
  static KernelOf<at::_ops::elu_backward> elu_backward;
  static KernelOf<at::_ops::eq_Tensor> eq;
  static KernelOf<at::_ops::erf> erf;
  static KernelOf<at::_ops::erfc> erfc;
  static KernelOf<at::_ops::erfinv> erfinv;
  static KernelOf<at::_ops::exp> exp;
  static KernelOf<at::_ops::expm1> expm1;
  static KernelOf<at::_ops::exponential_> exponential_;
  static KernelOf<at::_ops::flip> flip;
  static KernelOf<at::_ops::fmod_Tensor> fmod;
  static KernelOf<at::_ops::full> full;
  static KernelOf<at::_ops::gather> gather;
  static KernelOf<at::_ops::ge_Tensor> ge;
  static KernelOf<at::_ops::gelu> gelu;
  static KernelOf<at::_ops::gelu_backward> gelu_backward;
  static KernelOf<at::_ops::glu> glu;
  static KernelOf<at::_ops::gt_Tensor> gt;
  static KernelOf<at::_ops::hardsigmoid> hardsigmoid;
  static KernelOf<at::_ops::hardswish> hardswish;
  static KernelOf<at::_ops::index_Tensor> index;
  static KernelOf<at::_ops::index_add> index_add;
  static KernelOf<at::_ops::index_copy> index_copy;
  static KernelOf<at::_ops::index_fill__int_Scalar> index_fill_;
  static KernelOf<at::_ops::index_fill__int_Tensor> index_fill_;
  static KernelOf<at::_ops::index_put_> index_put_;
  static KernelOf<at::_ops::index_select> index_select;
  static KernelOf<at::_ops::isnan> isnan;
  static KernelOf<at::_ops::isneginf> isneginf;
  static KernelOf<at::_ops::kthvalue> kthvalue;
  static KernelOf<at::_ops::le_Tensor> le;
  static KernelOf<at::_ops::leaky_relu> leaky_relu;
  static KernelOf<at::_ops::leaky_relu_backward> leaky_relu_backward;
  static KernelOf<at::_ops::linalg_inv_ex> linalg_inv_ex;
  static KernelOf<at::_ops::linalg_vector_norm> linalg_vector_norm;
  static KernelOf<at::_ops::cat> cat;
  static KernelOf<at::_ops::linspace> linspace;
  static KernelOf<at::_ops::log10> log10;
  static KernelOf<at::_ops::log2> log2;
  static KernelOf<at::_ops::logit> logit;
  static KernelOf<at::_ops::lt_Tensor> lt;
  static KernelOf<at::_ops::masked_fill_Tensor> masked_fill;
  static KernelOf<at::_ops::max_dim> max;
  static KernelOf<at::_ops::max_pool2d> max_pool2d;
  static KernelOf<at::_ops::max_pool2d_with_indices> max_pool2d_with_indices;
  static KernelOf<at::_ops::max_pool2d_with_indices_backward>
      max_pool2d_with_indices_backward;
  static KernelOf<at::_ops::max_pool3d> max_pool3d;
  static KernelOf<at::_ops::max_pool3d_with_indices> max_pool3d_with_indices;
  static KernelOf<at::_ops::max_pool3d_with_indices_backward>
      max_pool3d_with_indices_backward;
  static KernelOf<at::_ops::maximum> maximum;
  static KernelOf<at::_ops::mean> mean;
  static KernelOf<at::_ops::mean_dim> mean;
  static KernelOf<at::_ops::min_dim> min;
  static KernelOf<at::_ops::minimum> minimum;
  static KernelOf<at::_ops::mish> mish;
  static KernelOf<at::_ops::mse_loss> mse_loss;
  static KernelOf<at::_ops::mse_loss_backward> mse_loss_backward;
  static KernelOf<at::_ops::mul_Tensor> mul;
  static KernelOf<at::_ops::multinomial> multinomial;
  static KernelOf<at::_ops::nan_to_num> nan_to_num;
  static KernelOf<at::_ops::ne_Tensor> ne;
  static KernelOf<at::_ops::nll_loss2d_backward> nll_loss2d_backward;
  static KernelOf<at::_ops::nll_loss_backward> nll_loss_backward;
  static KernelOf<at::_ops::norm_ScalarOpt_dtype> norm;
  static KernelOf<at::_ops::norm_Scalar> norm;
  static KernelOf<at::_ops::norm_ScalarOpt_dim_dtype> norm;
  static KernelOf<at::_ops::norm_ScalarOpt_dim> norm;
  static KernelOf<at::_ops::normal_Tensor_Tensor> normal;
  static KernelOf<at::_ops::pow_Tensor_Scalar> pow;
  static KernelOf<at::_ops::pow_Tensor_Tensor> pow;
  static KernelOf<at::_ops::pow_Scalar> pow;
  static KernelOf<at::_ops::prod_dim_int> prod;
  static KernelOf<at::_ops::randperm> randperm;
  static KernelOf<at::_ops::reciprocal> reciprocal;
  static KernelOf<at::_ops::reflection_pad1d> reflection_pad1d;
  static KernelOf<at::_ops::reflection_pad1d_backward>
      reflection_pad1d_backward;
  static KernelOf<at::_ops::reflection_pad2d> reflection_pad2d;
  static KernelOf<at::_ops::reflection_pad2d_backward>
      reflection_pad2d_backward;
  static KernelOf<at::_ops::reflection_pad3d> reflection_pad3d;
  static KernelOf<at::_ops::reflection_pad3d_backward>
      reflection_pad3d_backward;
  static KernelOf<at::_ops::remainder_Tensor> remainder;
  static KernelOf<at::_ops::repeat> repeat;
  static KernelOf<at::_ops::replication_pad1d> replication_pad1d;
  static KernelOf<at::_ops::replication_pad1d_backward>
      replication_pad1d_backward;
  static KernelOf<at::_ops::replication_pad2d> replication_pad2d;
  static KernelOf<at::_ops::replication_pad2d_backward>
      replication_pad2d_backward;
  static KernelOf<at::_ops::replication_pad3d> replication_pad3d;
  static KernelOf<at::_ops::replication_pad3d_backward>
      replication_pad3d_backward;
  static KernelOf<at::_ops::roll> roll;
  static KernelOf<at::_ops::rsqrt> rsqrt;
  static KernelOf<at::_ops::rsub_Tensor> rsub;
  static KernelOf<at::_ops::scatter_src> scatter;
  static KernelOf<at::_ops::scatter_value> scatter;
  static KernelOf<at::_ops::scatter_reduce> scatter;
  static KernelOf<at::_ops::scatter_value_reduce> scatter;
  static KernelOf<at::_ops::scatter_add> scatter_add;
  static KernelOf<at::_ops::scatter_reduce_two> scatter_reduce;
  static KernelOf<at::_ops::sigmoid> sigmoid;
  static KernelOf<at::_ops::sigmoid_backward> sigmoid_backward;
  static KernelOf<at::_ops::silu> silu;
  static KernelOf<at::_ops::sin> sin;
  static KernelOf<at::_ops::sinh> sinh;
  static KernelOf<at::_ops::slice_copy_Tensor> slice_copy;
  static KernelOf<at::_ops::slice_scatter> slice_scatter;
  static KernelOf<at::_ops::smooth_l1_loss> smooth_l1_loss;
  static KernelOf<at::_ops::smooth_l1_loss_backward> smooth_l1_loss_backward;
  static KernelOf<at::_ops::softplus> softplus;
  static KernelOf<at::_ops::sort> sort;
  static KernelOf<at::_ops::sort_stable> sort;
  static KernelOf<at::_ops::sqrt> sqrt;
  static KernelOf<at::_ops::squeeze_copy_dim> squeeze_copy;
  static KernelOf<at::_ops::squeeze_copy_dims> squeeze_copy;
  static KernelOf<at::_ops::std_correction> std;
  static KernelOf<at::_ops::std_mean_correction> std_mean;
  static KernelOf<at::_ops::sub_Tensor> sub;
  static KernelOf<at::_ops::sum_dim_IntList> sum;
  static KernelOf<at::_ops::tan> tan;
  static KernelOf<at::_ops::tanh> tanh;
  static KernelOf<at::_ops::tanh_backward> tanh_backward;
  static KernelOf<at::_ops::topk> topk;
  static KernelOf<at::_ops::trace> trace;
  static KernelOf<at::_ops::uniform_> uniform_;
  static KernelOf<at::_ops::upsample_nearest2d> upsample_nearest2d;
  static KernelOf<at::_ops::var_correction> var;
  static KernelOf<at::_ops::var_mean_correction> var_mean;
  static KernelOf<at::_ops::view_as_real_copy> view_as_real_copy;
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
