// Checks a call's shapes and dtypes as PyTorch does, before an XLA kernel
// traces the call.
//
// Upstream's kernels check some calls with XLA_CHECK. For others, XLA fails
// when it compiles the program, or computes wrong numbers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CALL_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CALL_CHECKS_H_

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/indexing_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/kernel_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/normalization_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/random_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/size_checks.h"

namespace torch_xla_ext::aten_overrides {

// Operators that have a structured kernel in PyTorch, whose C++ meta functions
// check their calls. `index` is left out, because its function computes the
// indices of a mask. PyTorch's meta functions in Python would take 50 to 650
// microseconds.
// clang-format off
#define TORCH_XLA_EXT_STRUCTURED(CHECK)                                        \
  CHECK(_linalg_eigh) CHECK(_linalg_svd) CHECK(_log_softmax_backward_data)     \
  CHECK(_log_softmax) CHECK(_softmax_backward_data) CHECK(_softmax)            \
  CHECK(acos) CHECK(acosh)                                                     \
  CHECK(adaptive_max_pool2d_backward) CHECK(adaptive_max_pool2d)               \
  CHECK(all) CHECK(any) CHECK(asin) CHECK(asinh) CHECK(atan)    \
  CHECK(atanh) CHECK(avg_pool2d_backward) CHECK(avg_pool3d_backward)           \
  CHECK(cat) CHECK(clamp_max) CHECK(clamp) CHECK(clamp_min) CHECK(cos)         \
  CHECK(cosh) CHECK(elu_backward) CHECK(erf) CHECK(erfc) CHECK(exp)            \
  CHECK(expm1) CHECK(frac) CHECK(gelu_backward) CHECK(hardshrink_backward)     \
  CHECK(hardsigmoid_backward) CHECK(isneginf) CHECK(leaky_relu_backward)       \
  CHECK(linalg_inv_ex) CHECK(linalg_vector_norm) CHECK(log10) CHECK(log1p)     \
  CHECK(log2) CHECK(log) CHECK(max_pool2d_with_indices_backward)               \
  CHECK(maximum) CHECK(minimum) CHECK(mse_loss) CHECK(neg) CHECK(reciprocal)   \
  CHECK(round) CHECK(rsqrt) CHECK(scatter_add) CHECK(sgn)                      \
  CHECK(sigmoid_backward) CHECK(sigmoid) CHECK(sign) CHECK(silu_backward)      \
  CHECK(sin) CHECK(sinh) CHECK(softplus_backward) CHECK(softshrink_backward)   \
  CHECK(smooth_l1_loss) CHECK(sqrt) CHECK(tan) CHECK(tanh_backward)            \
  CHECK(tanh) CHECK(threshold_backward) CHECK(tril) CHECK(triu)

// The same for operators with overloads: the meta function and the overload.
#define TORCH_XLA_EXT_STRUCTURED_OVERLOADS(CHECK)                              \
  CHECK(add, add_Tensor) CHECK(all, all_dim) CHECK(any, any_dim)               \
  CHECK(clamp_max, clamp_max_Tensor) CHECK(clamp, clamp_Tensor)                \
  CHECK(clamp_min, clamp_min_Tensor) CHECK(div, div_Tensor)                    \
  CHECK(div, div_Tensor_mode) CHECK(eq, eq_Scalar) CHECK(eq, eq_Tensor)        \
  CHECK(mul, mul_Tensor) CHECK(ne, ne_Scalar) CHECK(ne, ne_Tensor)             \
  CHECK(norm, norm_ScalarOpt_dim_dtype) CHECK(norm, norm_ScalarOpt_dim)        \
  CHECK(pow, pow_Tensor_Tensor) CHECK(pow, pow_Scalar)                         \
  CHECK(prod, prod_dim_int)                                                    \
  CHECK(remainder, remainder_Tensor) CHECK(scatter, scatter_src)               \
  CHECK(scatter, scatter_value) CHECK(scatter, scatter_reduce)                 \
  CHECK(scatter, scatter_value_reduce)                                         \
  CHECK(scatter_reduce, scatter_reduce_two) CHECK(sub, sub_Tensor)             \
  CHECK(sum, sum_dim_IntList)
// clang-format on

inline void RegisterCallChecks(torch::Library& m) {
#define TORCH_XLA_EXT_CHECK(name, overload)                                 \
  CheckedCall<at::_ops::overload, static_cast<at::_ops::overload::schema*>( \
                                      &at::meta::name)>::Register(m);
#define TORCH_XLA_EXT_CHECK_OF_SAME_NAME(name) TORCH_XLA_EXT_CHECK(name, name)
  TORCH_XLA_EXT_STRUCTURED(TORCH_XLA_EXT_CHECK_OF_SAME_NAME)
  TORCH_XLA_EXT_STRUCTURED_OVERLOADS(TORCH_XLA_EXT_CHECK)
#undef TORCH_XLA_EXT_CHECK_OF_SAME_NAME
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(OfDtypes, name, overload)             \
  CheckedCall<at::_ops::overload,                                 \
              &OfDtypes<static_cast<at::_ops::overload::schema*>( \
                  &at::meta::name)>::Call>::Register(m);
  TORCH_XLA_EXT_CHECK(OfFractions, elu, elu)
  TORCH_XLA_EXT_CHECK(OfFractions, glu, glu)
  TORCH_XLA_EXT_CHECK(OfFractions, hardshrink, hardshrink)
  TORCH_XLA_EXT_CHECK(OfFractions, hardsigmoid, hardsigmoid)
  TORCH_XLA_EXT_CHECK(OfFractions, leaky_relu, leaky_relu)
  TORCH_XLA_EXT_CHECK(OfFractions, lerp, lerp_Scalar)
  TORCH_XLA_EXT_CHECK(OfFractions, lerp, lerp_Tensor)
  TORCH_XLA_EXT_CHECK(OfFractions, mish, mish)
  TORCH_XLA_EXT_CHECK(OfFractions, silu, silu)
  TORCH_XLA_EXT_CHECK(OfFractions, softplus, softplus)
  TORCH_XLA_EXT_CHECK(OfNumbers, argmax, argmax)
  TORCH_XLA_EXT_CHECK(OfNumbers, argmin, argmin)
  TORCH_XLA_EXT_CHECK(OfNumbers, ceil, ceil)
  TORCH_XLA_EXT_CHECK(OfNumbers, floor, floor)
  TORCH_XLA_EXT_CHECK(OfNumbers, trunc, trunc)
  TORCH_XLA_EXT_CHECK(OfReals, amax, amax)
  TORCH_XLA_EXT_CHECK(OfReals, amin, amin)
  TORCH_XLA_EXT_CHECK(OfReals, atan2, atan2)
  TORCH_XLA_EXT_CHECK(OfReals, erfinv, erfinv)
  TORCH_XLA_EXT_CHECK(OfReals, fmod, fmod_Tensor)
  TORCH_XLA_EXT_CHECK(OfReals, ge, ge_Scalar)
  TORCH_XLA_EXT_CHECK(OfReals, ge, ge_Tensor)
  TORCH_XLA_EXT_CHECK(OfReals, gt, gt_Scalar)
  TORCH_XLA_EXT_CHECK(OfReals, gt, gt_Tensor)
  TORCH_XLA_EXT_CHECK(OfReals, le, le_Scalar)
  TORCH_XLA_EXT_CHECK(OfReals, le, le_Tensor)
  TORCH_XLA_EXT_CHECK(OfReals, lt, lt_Scalar)
  TORCH_XLA_EXT_CHECK(OfReals, lt, lt_Tensor)
  TORCH_XLA_EXT_CHECK(OfReals, sort, sort_stable)
  TORCH_XLA_EXT_CHECK(OfReals, threshold, threshold)
  TORCH_XLA_EXT_CHECK(OfReals, xlogy, xlogy_Tensor)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(overload, function) \
  CheckedCall<at::_ops::overload, &function>::Register(m);
  TORCH_XLA_EXT_CHECK(__lshift___Scalar, CheckShift<at::Scalar>)
  TORCH_XLA_EXT_CHECK(__lshift___Tensor, CheckShift<at::Tensor>)
  TORCH_XLA_EXT_CHECK(__rshift___Scalar, CheckShift<at::Scalar>)
  TORCH_XLA_EXT_CHECK(__rshift___Tensor, CheckShift<at::Tensor>)
  TORCH_XLA_EXT_CHECK(_adaptive_avg_pool2d, CheckAdaptivePool)
  TORCH_XLA_EXT_CHECK(_adaptive_avg_pool3d, CheckAdaptivePool)
  TORCH_XLA_EXT_CHECK(_cdist_forward, CheckCdist)
  TORCH_XLA_EXT_CHECK(_embedding_bag, CheckEmbeddingBag)
  TORCH_XLA_EXT_CHECK(_embedding_bag_forward_only, CheckEmbeddingBag)
  TORCH_XLA_EXT_CHECK(_index_put_impl_, CheckIndexPut)
  TORCH_XLA_EXT_CHECK(_native_batch_norm_legit, CheckBatchNormOfStatistics)
  TORCH_XLA_EXT_CHECK(_native_batch_norm_legit_no_stats, CheckBatchNormOfBatch)
  TORCH_XLA_EXT_CHECK(_log_softmax_backward_data, CheckSoftmaxBackward)
  TORCH_XLA_EXT_CHECK(_softmax_backward_data, CheckSoftmaxBackward)
  TORCH_XLA_EXT_CHECK(_to_copy, CheckToCopy)
  TORCH_XLA_EXT_CHECK(abs, CheckAbs)
  TORCH_XLA_EXT_CHECK(addcdiv, CheckWithProduct<&at::meta::addcdiv>)
  TORCH_XLA_EXT_CHECK(addcmul, CheckWithProduct<&at::meta::addcmul>)
  TORCH_XLA_EXT_CHECK(addmm, CheckAddedMatmul<&at::meta::addmm>)
  TORCH_XLA_EXT_CHECK(addr, CheckOuterProduct)
  TORCH_XLA_EXT_CHECK(as_strided_scatter, CheckAsStridedScatter)
  TORCH_XLA_EXT_CHECK(avg_pool2d, CheckAvgPool<&at::meta::avg_pool2d>)
  TORCH_XLA_EXT_CHECK(avg_pool3d, CheckAvgPool<&at::meta::avg_pool3d>)
  TORCH_XLA_EXT_CHECK(baddbmm, CheckAddedMatmul<&at::meta::baddbmm>)
  TORCH_XLA_EXT_CHECK(bernoulli_p, CheckBernoulliP)
  TORCH_XLA_EXT_CHECK(binary_cross_entropy, CheckBinaryCrossEntropy)
  TORCH_XLA_EXT_CHECK(binary_cross_entropy_backward,
                      CheckBinaryCrossEntropyBackward)
  TORCH_XLA_EXT_CHECK(binary_cross_entropy_with_logits, CheckWeights)
  TORCH_XLA_EXT_CHECK(bitwise_and_Tensor, CheckBitwise<&at::meta::bitwise_and>)
  TORCH_XLA_EXT_CHECK(bitwise_left_shift_Tensor, CheckBitwiseShift)
  TORCH_XLA_EXT_CHECK(bitwise_not, CheckBitwiseNot)
  TORCH_XLA_EXT_CHECK(bitwise_or_Tensor, CheckBitwise<&at::meta::bitwise_or>)
  TORCH_XLA_EXT_CHECK(bitwise_right_shift_Tensor, CheckBitwiseShift)
  TORCH_XLA_EXT_CHECK(bitwise_xor_Tensor, CheckBitwise<&at::meta::bitwise_xor>)
  TORCH_XLA_EXT_CHECK(bmm, CheckMatmul<&at::meta::bmm>)
  TORCH_XLA_EXT_CHECK(cholesky, CheckCholesky)
  TORCH_XLA_EXT_CHECK(clone, CheckClone)
  TORCH_XLA_EXT_CHECK(complex, CheckComplex)
  TORCH_XLA_EXT_CHECK(constant_pad_nd, CheckConstantPad)
  TORCH_XLA_EXT_CHECK(convolution_overrideable, CheckConvolution)
  TORCH_XLA_EXT_CHECK(cummax, CheckCumulativeExtremum)
  TORCH_XLA_EXT_CHECK(cummin, CheckCumulativeExtremum)
  TORCH_XLA_EXT_CHECK(cumprod, CheckCumulative<&at::meta::cumprod>)
  TORCH_XLA_EXT_CHECK(cumsum, CheckCumulative<&at::meta::cumsum>)
  TORCH_XLA_EXT_CHECK(diagonal_scatter, CheckDiagonalScatter)
  TORCH_XLA_EXT_CHECK(dot, CheckDot)
  TORCH_XLA_EXT_CHECK(embedding, CheckEmbedding)
  TORCH_XLA_EXT_CHECK(empty_memory_format, CheckEmpty)
  TORCH_XLA_EXT_CHECK(expand_copy, composite::expand_symint)
  TORCH_XLA_EXT_CHECK(eye_m_out, CheckEye)
  TORCH_XLA_EXT_CHECK(fill__Tensor, CheckFill)
  TORCH_XLA_EXT_CHECK(flip, CheckFlip)
  TORCH_XLA_EXT_CHECK(floor_divide, CheckFloorDivide)
  TORCH_XLA_EXT_CHECK(fmod_Scalar, CheckFmodByNumber)
  TORCH_XLA_EXT_CHECK(full, CheckSizes)
  TORCH_XLA_EXT_CHECK(gather, CheckGather)
  TORCH_XLA_EXT_CHECK(gelu, CheckGelu)
  TORCH_XLA_EXT_CHECK(hardtanh, CheckHardtanh)
  TORCH_XLA_EXT_CHECK(index_Tensor, CheckIndices)
  TORCH_XLA_EXT_CHECK(index_add, CheckIndexAdd)
  TORCH_XLA_EXT_CHECK(index_copy, CheckIndexCopy)
  TORCH_XLA_EXT_CHECK(index_fill__int_Scalar, CheckIndexFill<at::Scalar>)
  TORCH_XLA_EXT_CHECK(index_fill__int_Tensor, CheckIndexFill<at::Tensor>)
  TORCH_XLA_EXT_CHECK(index_put_, CheckIndexPut)
  TORCH_XLA_EXT_CHECK(index_select, CheckIndexSelect)
  TORCH_XLA_EXT_CHECK(kthvalue, CheckKthvalue)
  TORCH_XLA_EXT_CHECK(logical_and, CheckBroadcast)
  TORCH_XLA_EXT_CHECK(logical_or, CheckBroadcast)
  TORCH_XLA_EXT_CHECK(logical_xor, CheckBroadcast)
  TORCH_XLA_EXT_CHECK(masked_fill_Scalar, CheckMaskedFillOfNumber)
  TORCH_XLA_EXT_CHECK(masked_fill_Tensor, CheckMaskedFill)
  TORCH_XLA_EXT_CHECK(max, CheckWholeExtremum)
  TORCH_XLA_EXT_CHECK(max_dim, CheckExtremum)
  TORCH_XLA_EXT_CHECK(max_pool2d_with_indices, CheckMaxPool2d)
  TORCH_XLA_EXT_CHECK(min, CheckWholeExtremum)
  TORCH_XLA_EXT_CHECK(min_dim, CheckExtremum)
  TORCH_XLA_EXT_CHECK(mm, CheckMatmul<&at::meta::mm>)
  TORCH_XLA_EXT_CHECK(multinomial, CheckMultinomial)
  TORCH_XLA_EXT_CHECK(mv, CheckMv)
  TORCH_XLA_EXT_CHECK(mvlgamma, CheckMvlgamma)
  TORCH_XLA_EXT_CHECK(native_batch_norm, CheckBatchNorm)
  TORCH_XLA_EXT_CHECK(native_dropout, CheckDropout)
  TORCH_XLA_EXT_CHECK(native_layer_norm, CheckLayerNorm)
  TORCH_XLA_EXT_CHECK(nll_loss2d_forward, CheckNllLoss2d)
  TORCH_XLA_EXT_CHECK(nll_loss_forward, CheckNllLoss)
  TORCH_XLA_EXT_CHECK(norm_Scalar, CheckFractions)
  TORCH_XLA_EXT_CHECK(normal_, CheckNormal_)
  TORCH_XLA_EXT_CHECK(normal_Tensor_Tensor, CheckNormalOfTensors)
  TORCH_XLA_EXT_CHECK(normal_Tensor_float, CheckNormal)
  TORCH_XLA_EXT_CHECK(normal_float_Tensor, CheckNormalByDeviation)
  TORCH_XLA_EXT_CHECK(permute_copy, composite::permute)
  TORCH_XLA_EXT_CHECK(pixel_shuffle, CheckPixelShuffle)
  TORCH_XLA_EXT_CHECK(polar, CheckComplex)
  TORCH_XLA_EXT_CHECK(pow_Tensor_Scalar, CheckPow)
  TORCH_XLA_EXT_CHECK(put_, CheckPut)
  TORCH_XLA_EXT_CHECK(random__from, CheckRandom)
  TORCH_XLA_EXT_CHECK(random__to, CheckRandomTo)
  TORCH_XLA_EXT_CHECK(reflection_pad1d, CheckReflectionPad)
  TORCH_XLA_EXT_CHECK(reflection_pad2d, CheckReflectionPad)
  TORCH_XLA_EXT_CHECK(reflection_pad3d, CheckReflectionPad)
  TORCH_XLA_EXT_CHECK(relu, CheckRelu)
  TORCH_XLA_EXT_CHECK(repeat, CheckRepeat)
  TORCH_XLA_EXT_CHECK(replication_pad1d, CheckPadded)
  TORCH_XLA_EXT_CHECK(replication_pad2d, CheckPadded)
  TORCH_XLA_EXT_CHECK(replication_pad3d, CheckPadded)
  TORCH_XLA_EXT_CHECK(roll, CheckRoll)
  TORCH_XLA_EXT_CHECK(rsub_Scalar, CheckSubOfNumber)
  TORCH_XLA_EXT_CHECK(scatter_add, CheckIndexed)
  TORCH_XLA_EXT_CHECK(scatter_reduce, CheckIndexed)
  TORCH_XLA_EXT_CHECK(scatter_reduce_two, CheckScatterReduce)
  TORCH_XLA_EXT_CHECK(scatter_src, CheckIndexed)
  TORCH_XLA_EXT_CHECK(scatter_value, CheckIndexed)
  TORCH_XLA_EXT_CHECK(scatter_value_reduce, CheckIndexed)
  TORCH_XLA_EXT_CHECK(select_scatter, CheckSelectScatter)
  TORCH_XLA_EXT_CHECK(slice_scatter, CheckSliceScatter)
  TORCH_XLA_EXT_CHECK(softshrink, CheckSoftshrink)
  TORCH_XLA_EXT_CHECK(sort, CheckSort)
  TORCH_XLA_EXT_CHECK(split_with_sizes_copy, composite::split_with_sizes_symint)
  TORCH_XLA_EXT_CHECK(stack, CheckStack)
  TORCH_XLA_EXT_CHECK(sub_Scalar, CheckSubOfNumber)
  TORCH_XLA_EXT_CHECK(t_copy, composite::t)
  TORCH_XLA_EXT_CHECK(take, CheckTake)
  TORCH_XLA_EXT_CHECK(threshold, CheckThreshold)
  TORCH_XLA_EXT_CHECK(topk, CheckTopk)
  TORCH_XLA_EXT_CHECK(trace, CheckTrace)
  TORCH_XLA_EXT_CHECK(triangular_solve, CheckTriangularSolve)
  TORCH_XLA_EXT_CHECK(unbind_copy_int, composite::unbind)
  TORCH_XLA_EXT_CHECK(uniform_, CheckUniform)
  TORCH_XLA_EXT_CHECK(upsample_bilinear2d, at::meta::upsample_bilinear2d_symint)
  TORCH_XLA_EXT_CHECK(upsample_nearest2d, at::meta::upsample_nearest2d_symint)
  TORCH_XLA_EXT_CHECK(view_as_complex_copy, CheckViewAsComplex)
  TORCH_XLA_EXT_CHECK(view_as_real_copy, CheckViewAsReal)
  TORCH_XLA_EXT_CHECK(view_copy, at::meta::view_symint)
  TORCH_XLA_EXT_CHECK(where_self, CheckWhere)
#undef TORCH_XLA_EXT_CHECK
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CALL_CHECKS_H_
