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
#include "torch_xla_ext/csrc/aten_overrides/random_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/size_checks.h"

namespace torch_xla_ext::aten_overrides {

inline void RegisterCallChecks(torch::Library& m) {
#define TORCH_XLA_EXT_CHECK(name, overload)                                 \
  CheckedCall<at::_ops::overload, static_cast<at::_ops::overload::schema*>( \
                                      &at::meta::name)>::Register(m);
  // PyTorch's C++ meta functions, one for each upstream operator that has a
  // structured kernel in PyTorch. `index` is left out, because its function
  // computes the indices of a mask. PyTorch's meta functions in Python would
  // take 50 to 650 microseconds.
  TORCH_XLA_EXT_CHECK(_linalg_eigh, _linalg_eigh)
  TORCH_XLA_EXT_CHECK(_log_softmax_backward_data, _log_softmax_backward_data)
  TORCH_XLA_EXT_CHECK(_log_softmax, _log_softmax)
  TORCH_XLA_EXT_CHECK(_softmax_backward_data, _softmax_backward_data)
  TORCH_XLA_EXT_CHECK(_softmax, _softmax)
  TORCH_XLA_EXT_CHECK(acos, acos)
  TORCH_XLA_EXT_CHECK(acosh, acosh)
  TORCH_XLA_EXT_CHECK(adaptive_max_pool2d_backward,
                      adaptive_max_pool2d_backward)
  TORCH_XLA_EXT_CHECK(adaptive_max_pool2d, adaptive_max_pool2d)
  TORCH_XLA_EXT_CHECK(add, add_Tensor)
  TORCH_XLA_EXT_CHECK(addcdiv, addcdiv)
  TORCH_XLA_EXT_CHECK(all, all_dim)
  TORCH_XLA_EXT_CHECK(all, all)
  TORCH_XLA_EXT_CHECK(any, any_dim)
  TORCH_XLA_EXT_CHECK(any, any)
  TORCH_XLA_EXT_CHECK(asin, asin)
  TORCH_XLA_EXT_CHECK(asinh, asinh)
  TORCH_XLA_EXT_CHECK(atan, atan)
  TORCH_XLA_EXT_CHECK(atanh, atanh)
  TORCH_XLA_EXT_CHECK(avg_pool2d_backward, avg_pool2d_backward)
  TORCH_XLA_EXT_CHECK(avg_pool3d_backward, avg_pool3d_backward)
  TORCH_XLA_EXT_CHECK(cat, cat)
  TORCH_XLA_EXT_CHECK(clamp_max, clamp_max)
  TORCH_XLA_EXT_CHECK(clamp_max, clamp_max_Tensor)
  TORCH_XLA_EXT_CHECK(clamp, clamp)
  TORCH_XLA_EXT_CHECK(clamp, clamp_Tensor)
  TORCH_XLA_EXT_CHECK(clamp_min, clamp_min)
  TORCH_XLA_EXT_CHECK(clamp_min, clamp_min_Tensor)
  TORCH_XLA_EXT_CHECK(cos, cos)
  TORCH_XLA_EXT_CHECK(cosh, cosh)
  TORCH_XLA_EXT_CHECK(div, div_Tensor)
  TORCH_XLA_EXT_CHECK(div, div_Tensor_mode)
  TORCH_XLA_EXT_CHECK(elu_backward, elu_backward)
  TORCH_XLA_EXT_CHECK(eq, eq_Scalar)
  TORCH_XLA_EXT_CHECK(eq, eq_Tensor)
  TORCH_XLA_EXT_CHECK(erf, erf)
  TORCH_XLA_EXT_CHECK(erfc, erfc)
  TORCH_XLA_EXT_CHECK(exp, exp)
  TORCH_XLA_EXT_CHECK(expm1, expm1)
  TORCH_XLA_EXT_CHECK(frac, frac)
  TORCH_XLA_EXT_CHECK(gelu_backward, gelu_backward)
  TORCH_XLA_EXT_CHECK(hardshrink_backward, hardshrink_backward)
  TORCH_XLA_EXT_CHECK(hardsigmoid_backward, hardsigmoid_backward)
  TORCH_XLA_EXT_CHECK(isneginf, isneginf)
  TORCH_XLA_EXT_CHECK(leaky_relu_backward, leaky_relu_backward)
  TORCH_XLA_EXT_CHECK(linalg_inv_ex, linalg_inv_ex)
  TORCH_XLA_EXT_CHECK(linalg_vector_norm, linalg_vector_norm)
  TORCH_XLA_EXT_CHECK(log10, log10)
  TORCH_XLA_EXT_CHECK(log1p, log1p)
  TORCH_XLA_EXT_CHECK(log2, log2)
  TORCH_XLA_EXT_CHECK(log, log)
  TORCH_XLA_EXT_CHECK(max_pool2d_with_indices_backward,
                      max_pool2d_with_indices_backward)
  TORCH_XLA_EXT_CHECK(maximum, maximum)
  TORCH_XLA_EXT_CHECK(minimum, minimum)
  TORCH_XLA_EXT_CHECK(mse_loss, mse_loss)
  TORCH_XLA_EXT_CHECK(mul, mul_Tensor)
  TORCH_XLA_EXT_CHECK(ne, ne_Scalar)
  TORCH_XLA_EXT_CHECK(ne, ne_Tensor)
  TORCH_XLA_EXT_CHECK(neg, neg)
  TORCH_XLA_EXT_CHECK(norm, norm_ScalarOpt_dim_dtype)
  TORCH_XLA_EXT_CHECK(norm, norm_ScalarOpt_dim)
  TORCH_XLA_EXT_CHECK(pow, pow_Tensor_Tensor)
  TORCH_XLA_EXT_CHECK(pow, pow_Scalar)
  TORCH_XLA_EXT_CHECK(pow, pow_Tensor_Scalar)
  TORCH_XLA_EXT_CHECK(prod, prod_dim_int)
  TORCH_XLA_EXT_CHECK(reciprocal, reciprocal)
  TORCH_XLA_EXT_CHECK(remainder, remainder_Tensor)
  TORCH_XLA_EXT_CHECK(round, round)
  TORCH_XLA_EXT_CHECK(rsqrt, rsqrt)
  TORCH_XLA_EXT_CHECK(scatter_add, scatter_add)
  TORCH_XLA_EXT_CHECK(scatter, scatter_src)
  TORCH_XLA_EXT_CHECK(scatter, scatter_value)
  TORCH_XLA_EXT_CHECK(scatter, scatter_reduce)
  TORCH_XLA_EXT_CHECK(scatter, scatter_value_reduce)
  TORCH_XLA_EXT_CHECK(scatter_reduce, scatter_reduce_two)
  TORCH_XLA_EXT_CHECK(sgn, sgn)
  TORCH_XLA_EXT_CHECK(sigmoid_backward, sigmoid_backward)
  TORCH_XLA_EXT_CHECK(sigmoid, sigmoid)
  TORCH_XLA_EXT_CHECK(sign, sign)
  TORCH_XLA_EXT_CHECK(silu_backward, silu_backward)
  TORCH_XLA_EXT_CHECK(sin, sin)
  TORCH_XLA_EXT_CHECK(sinh, sinh)
  TORCH_XLA_EXT_CHECK(softplus_backward, softplus_backward)
  TORCH_XLA_EXT_CHECK(softshrink_backward, softshrink_backward)
  TORCH_XLA_EXT_CHECK(smooth_l1_loss, smooth_l1_loss)
  TORCH_XLA_EXT_CHECK(sqrt, sqrt)
  TORCH_XLA_EXT_CHECK(sub, sub_Tensor)
  TORCH_XLA_EXT_CHECK(sum, sum_dim_IntList)
  TORCH_XLA_EXT_CHECK(tan, tan)
  TORCH_XLA_EXT_CHECK(tanh_backward, tanh_backward)
  TORCH_XLA_EXT_CHECK(tanh, tanh)
  TORCH_XLA_EXT_CHECK(threshold_backward, threshold_backward)
  TORCH_XLA_EXT_CHECK(triangular_solve, triangular_solve)
  TORCH_XLA_EXT_CHECK(tril, tril)
  TORCH_XLA_EXT_CHECK(triu, triu)
  TORCH_XLA_EXT_CHECK(xlogy, xlogy_Tensor)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(name, overload)                      \
  CheckedCall<at::_ops::overload,                                \
              &OfReals<static_cast<at::_ops::overload::schema*>( \
                  &at::meta::name)>::Call>::Register(m);
  TORCH_XLA_EXT_CHECK(amax, amax)
  TORCH_XLA_EXT_CHECK(amin, amin)
  TORCH_XLA_EXT_CHECK(lt, lt_Scalar)
  TORCH_XLA_EXT_CHECK(lt, lt_Tensor)
  TORCH_XLA_EXT_CHECK(le, le_Scalar)
  TORCH_XLA_EXT_CHECK(le, le_Tensor)
  TORCH_XLA_EXT_CHECK(gt, gt_Scalar)
  TORCH_XLA_EXT_CHECK(gt, gt_Tensor)
  TORCH_XLA_EXT_CHECK(ge, ge_Scalar)
  TORCH_XLA_EXT_CHECK(ge, ge_Tensor)
  TORCH_XLA_EXT_CHECK(fmod, fmod_Tensor)
  TORCH_XLA_EXT_CHECK(atan2, atan2)
  TORCH_XLA_EXT_CHECK(erfinv, erfinv)
  TORCH_XLA_EXT_CHECK(sort, sort_stable)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(name, overload)                        \
  CheckedCall<at::_ops::overload,                                  \
              &OfNumbers<static_cast<at::_ops::overload::schema*>( \
                  &at::meta::name)>::Call>::Register(m);
  TORCH_XLA_EXT_CHECK(argmax, argmax)
  TORCH_XLA_EXT_CHECK(argmin, argmin)
  TORCH_XLA_EXT_CHECK(ceil, ceil)
  TORCH_XLA_EXT_CHECK(floor, floor)
  TORCH_XLA_EXT_CHECK(trunc, trunc)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(name, overload)                          \
  CheckedCall<at::_ops::overload,                                    \
              &OfFractions<static_cast<at::_ops::overload::schema*>( \
                  &at::meta::name)>::Call>::Register(m);
  TORCH_XLA_EXT_CHECK(lerp, lerp_Scalar)
  TORCH_XLA_EXT_CHECK(lerp, lerp_Tensor)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(name, overload)                           \
  CheckedCall<at::_ops::overload,                                     \
              &CheckBitwise<static_cast<at::_ops::overload::schema*>( \
                  &at::meta::name)>>::Register(m);
  TORCH_XLA_EXT_CHECK(bitwise_and, bitwise_and_Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_or, bitwise_or_Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_xor, bitwise_xor_Tensor)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(name, overload)                          \
  CheckedCall<at::_ops::overload,                                    \
              &WithNumbers<static_cast<at::_ops::overload::schema*>( \
                  &at::meta::name)>::Call>::Register(m);
  TORCH_XLA_EXT_CHECK(addcmul, addcmul)
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
  TORCH_XLA_EXT_CHECK(_linalg_svd, CheckSvd)
  TORCH_XLA_EXT_CHECK(_to_copy, CheckToCopy)
  TORCH_XLA_EXT_CHECK(abs, CheckAbs)
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
  TORCH_XLA_EXT_CHECK(bitwise_left_shift_Tensor, CheckBitwiseShift)
  TORCH_XLA_EXT_CHECK(bitwise_not, CheckBitwiseNot)
  TORCH_XLA_EXT_CHECK(bitwise_right_shift_Tensor, CheckBitwiseShift)
  TORCH_XLA_EXT_CHECK(bmm, CheckMatmul<&at::meta::bmm>)
  TORCH_XLA_EXT_CHECK(cholesky, CheckCholesky)
  TORCH_XLA_EXT_CHECK(clone, CheckClone)
  TORCH_XLA_EXT_CHECK(complex, CheckComplex)
  TORCH_XLA_EXT_CHECK(constant_pad_nd, CheckConstantPad)
  TORCH_XLA_EXT_CHECK(convolution_overrideable, CheckConvolution)
  TORCH_XLA_EXT_CHECK(cummax, CheckCumulativeExtremum)
  TORCH_XLA_EXT_CHECK(cummin, CheckCumulativeExtremum)
  TORCH_XLA_EXT_CHECK(diagonal_scatter, CheckDiagonalScatter)
  TORCH_XLA_EXT_CHECK(dot, CheckDot)
  TORCH_XLA_EXT_CHECK(embedding, CheckEmbedding)
  TORCH_XLA_EXT_CHECK(empty_memory_format, CheckEmpty)
  TORCH_XLA_EXT_CHECK(expand_copy, CheckExpand)
  TORCH_XLA_EXT_CHECK(eye_m_out, CheckEye)
  TORCH_XLA_EXT_CHECK(fill__Tensor, CheckFill)
  TORCH_XLA_EXT_CHECK(flip, CheckFlip)
  TORCH_XLA_EXT_CHECK(floor_divide, CheckFloorDivide)
  TORCH_XLA_EXT_CHECK(fmod_Scalar, CheckFmodByNumber)
  TORCH_XLA_EXT_CHECK(full, CheckSizes)
  TORCH_XLA_EXT_CHECK(gather, CheckGather)
  TORCH_XLA_EXT_CHECK(gelu, CheckGelu)
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
  TORCH_XLA_EXT_CHECK(permute_copy, CheckPermuteCopy)
  TORCH_XLA_EXT_CHECK(pixel_shuffle, CheckPixelShuffle)
  TORCH_XLA_EXT_CHECK(polar, CheckComplex)
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
  TORCH_XLA_EXT_CHECK(select_scatter, CheckSelectScatter)
  TORCH_XLA_EXT_CHECK(slice_scatter, CheckSliceScatter)
  TORCH_XLA_EXT_CHECK(softshrink, CheckSoftshrink)
  TORCH_XLA_EXT_CHECK(sort, CheckSort)
  TORCH_XLA_EXT_CHECK(split_with_sizes_copy, CheckSplitCopy)
  TORCH_XLA_EXT_CHECK(stack, CheckStack)
  TORCH_XLA_EXT_CHECK(sub_Scalar, CheckSubOfNumber)
  TORCH_XLA_EXT_CHECK(t_copy, CheckTCopy)
  TORCH_XLA_EXT_CHECK(take, CheckTake)
  TORCH_XLA_EXT_CHECK(threshold, CheckThreshold)
  TORCH_XLA_EXT_CHECK(topk, CheckTopk)
  TORCH_XLA_EXT_CHECK(trace, CheckTrace)
  TORCH_XLA_EXT_CHECK(unbind_copy_int, CheckUnbindCopy)
  TORCH_XLA_EXT_CHECK(uniform_, CheckUniform)
  TORCH_XLA_EXT_CHECK(upsample_bilinear2d, CheckUpsampled)
  TORCH_XLA_EXT_CHECK(upsample_nearest2d, CheckUpsampled)
  TORCH_XLA_EXT_CHECK(view_copy, CheckViewCopy)
  TORCH_XLA_EXT_CHECK(where_self, CheckWhere)
  CheckedCall<at::_ops::cumprod,
              &CheckCumulative<static_cast<at::_ops::cumprod::schema*>(
                  &at::meta::cumprod)>>::Register(m);
  CheckedCall<at::_ops::cumsum,
              &CheckCumulative<static_cast<at::_ops::cumsum::schema*>(
                  &at::meta::cumsum)>>::Register(m);
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(name) \
  CheckedCall<at::_ops::name, &OfFractions<&at::meta::name>::Call>::Register(m);
  TORCH_XLA_EXT_CHECK(elu)
  TORCH_XLA_EXT_CHECK(glu)
  TORCH_XLA_EXT_CHECK(hardshrink)
  TORCH_XLA_EXT_CHECK(hardsigmoid)
  TORCH_XLA_EXT_CHECK(leaky_relu)
  TORCH_XLA_EXT_CHECK(mish)
  TORCH_XLA_EXT_CHECK(silu)
  TORCH_XLA_EXT_CHECK(softplus)
#undef TORCH_XLA_EXT_CHECK
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CALL_CHECKS_H_
