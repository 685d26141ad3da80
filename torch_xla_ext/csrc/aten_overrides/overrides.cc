// The list of the operators that are registered here in place of torch_xla's
// own kernels. The files are compiled as one unit: torch's headers take longer
// than they do.
//
// The kernels run lazily, for in-place operators (through functionalization),
// for out= forms and under torch.compile. With XLA_DISABLE_FUNCTIONALIZATION=1,
// in-place and out= forms are upstream's.
#include "torch_xla_ext/csrc/aten_overrides/overrides.h"

#include <ATen/NativeFunctions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "torch_xla_ext/csrc/aten_overrides/activations.h"
#include "torch_xla_ext/csrc/aten_overrides/arithmetic.h"
#include "torch_xla_ext/csrc/aten_overrides/autocast.h"
#include "torch_xla_ext/csrc/aten_overrides/call_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/complex.h"
#include "torch_xla_ext/csrc/aten_overrides/composed.h"
#include "torch_xla_ext/csrc/aten_overrides/copies.h"
#include "torch_xla_ext/csrc/aten_overrides/counting_library.h"
#include "torch_xla_ext/csrc/aten_overrides/division.h"
#include "torch_xla_ext/csrc/aten_overrides/dtype_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/embedding_bag.h"
#include "torch_xla_ext/csrc/aten_overrides/factories.h"
#include "torch_xla_ext/csrc/aten_overrides/foreach.h"
#include "torch_xla_ext/csrc/aten_overrides/histogram.h"
#include "torch_xla_ext/csrc/aten_overrides/in_place_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/indexing.h"
#include "torch_xla_ext/csrc/aten_overrides/interpolation.h"
#include "torch_xla_ext/csrc/aten_overrides/layer_norm.h"
#include "torch_xla_ext/csrc/aten_overrides/linear_algebra.h"
#include "torch_xla_ext/csrc/aten_overrides/losses.h"
#include "torch_xla_ext/csrc/aten_overrides/masked_fill.h"
#include "torch_xla_ext/csrc/aten_overrides/normalization.h"
#include "torch_xla_ext/csrc/aten_overrides/out_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/overlap_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/pooling.h"
#include "torch_xla_ext/csrc/aten_overrides/precision.h"
#include "torch_xla_ext/csrc/aten_overrides/random.h"
#include "torch_xla_ext/csrc/aten_overrides/ranges.h"
#include "torch_xla_ext/csrc/aten_overrides/reductions.h"
#include "torch_xla_ext/csrc/aten_overrides/scaled_mm.h"
#include "torch_xla_ext/csrc/aten_overrides/sorting.h"
#include "torch_xla_ext/csrc/aten_overrides/strides.h"
#include "torch_xla_ext/csrc/aten_overrides/views.h"
#include "torch_xla_ext/csrc/aten_overrides/written_forms.h"

namespace torch_xla_ext {
namespace aten_overrides {
namespace {

// Upstream's kernels, of 16-bit floats in float32, and those of floats only.
// clang-format off
#define TORCH_XLA_EXT_UPSTREAM_IN_FLOAT32(KERNEL)                              \
  KERNEL(_adaptive_avg_pool2d) KERNEL(_adaptive_avg_pool3d) KERNEL(leaky_relu) \
  KERNEL(mse_loss_backward) KERNEL(nll_loss2d_backward) KERNEL(hardsigmoid)    \
  KERNEL(glu) KERNEL(hardswish) KERNEL(mish) KERNEL(silu) KERNEL(softplus)
#define TORCH_XLA_EXT_UPSTREAM_OF_FLOATS(KERNEL)                               \
  KERNEL(erf) KERNEL(erfc) KERNEL(erfinv) KERNEL(expm1) KERNEL(reciprocal)     \
  KERNEL(rsqrt) KERNEL(sqrt) KERNEL(tan) KERNEL(tanh)
// clang-format on

void RegisterForXla(torch::Library& library) {
  CountingLibrary m(library);
  // activations.h, in float32 as PyTorch's
#define TORCH_XLA_EXT_FLOAT32(name) m.impl(#name, kFloat32<&Upstream::name>);
  TORCH_XLA_EXT_UPSTREAM_IN_FLOAT32(TORCH_XLA_EXT_FLOAT32)
#undef TORCH_XLA_EXT_FLOAT32
  m.impl("_prelu_kernel", PreluKernel);
  m.impl("_prelu_kernel_backward", PreluKernelBackward);
  m.impl("celu", kFloat32<&Celu>);
  m.impl("elu", kFloat32<&Elu>);
  m.impl("gelu", kFloat32<&Gelu>);
  m.impl("gelu_backward", kFloat32<&GeluBackward>);
  m.impl("elu_backward", kFloat32<&EluBackward>);
  m.impl("glu_backward", kFloat32<&GluBackward>);
  m.impl("hardshrink_backward", kBroadcast<&Upstream::hardshrink_backward>);
  m.impl("hardsigmoid_backward", kFloat32<&HardsigmoidBackward>);
  m.impl("hardswish_backward", kFloat32<&HardswishBackward>);
  m.impl("leaky_relu_backward",
         kFloat32<kBroadcast<&Upstream::leaky_relu_backward>>);
  m.impl("logit", kFloat32<&Logit>);
  m.impl("log_sigmoid_backward", kFloat32<&LogSigmoidBackward>);
  m.impl("log_sigmoid_forward", kFloat32<&LogSigmoidForward>);
  m.impl("softplus_backward", kFloat32<&SoftplusBackward>);
  m.impl("softshrink", kFloat32<&Softshrink>);
  m.impl("softshrink_backward", kBroadcast<&Upstream::softshrink_backward>);
  m.impl("threshold", kFloat32<&Threshold>);
  // composed.h
  m.impl("_pack_padded_sequence", at::native::_pack_padded_sequence);
  m.impl("threshold_backward", kFloat32<&ThresholdBackward>);
  m.impl("hardtanh_backward", kFloat32<&HardtanhBackward>);
  // upstream_kernels.h
  m.impl("add.Tensor", WithFactor<&Upstream::add>);
#define TORCH_XLA_EXT_COMPARISON(name)                                \
  m.impl(#name ".Scalar", Matched<OfTwo, &Upstream::name>::OfNumber); \
  m.impl(#name ".Tensor", Matched<OfTwo, &Upstream::name>::Call);
  TORCH_XLA_EXT_COMPARISON(eq)
  TORCH_XLA_EXT_COMPARISON(ge)
  TORCH_XLA_EXT_COMPARISON(gt)
  TORCH_XLA_EXT_COMPARISON(le)
  TORCH_XLA_EXT_COMPARISON(lt)
  TORCH_XLA_EXT_COMPARISON(ne)
#undef TORCH_XLA_EXT_COMPARISON
  m.impl("rsub.Tensor", WithFactor<&Upstream::rsub>);
  m.impl("sub.Tensor", WithFactor<&Upstream::sub>);
  // arithmetic.h
  m.impl("addcdiv", kFloat32<&Promoted<&Upstream::addcdiv>>);
  m.impl("addcmul", kFloat32<&Promoted<&Upstream::addcmul>>);
  m.impl("clamp", Clamp);
  m.impl("clamp.Tensor", ClampTensor);
  m.impl("clamp_max", ClampMax);
  m.impl("clamp_min", ClampMin);
  m.impl("clamp_max.Tensor", ClampMaxTensor);
  m.impl("clamp_min.Tensor", ClampMinTensor);
  m.impl("lerp.Scalar", LerpScalar);
  m.impl("lerp.Tensor", LerpTensor);
  m.impl("add.Scalar", NumberWithFactor<&Upstream::add>);
  m.impl("mul.Scalar", MulByNumber);
  m.impl("mul.Tensor", MulTensor);
  m.impl("rsub.Scalar", RsubOfNumber);
  m.impl("sub.Scalar", NumberWithFactor<&Upstream::sub>);
  m.impl("nan_to_num", NanToNum);
  m.impl("atan2", kFloat32<&OfCommonFloat<&Upstream::atan2>>);
  m.impl("xlogy.Tensor", kFloat32<&OfCommonFloat<&Upstream::xlogy>>);
  m.impl("bitwise_and.Tensor", OfCommonType<&Upstream::bitwise_and>);
  m.impl("bitwise_left_shift.Tensor",
         OfCommonType<&Upstream::bitwise_left_shift>);
  m.impl("bitwise_or.Tensor", OfCommonType<&Upstream::bitwise_or>);
  m.impl("bitwise_right_shift.Tensor",
         OfCommonType<&Upstream::bitwise_right_shift>);
  m.impl("bitwise_xor.Tensor", OfCommonType<&Upstream::bitwise_xor>);
  m.impl("__lshift__.Scalar", ShiftedByNumber<&Upstream::bitwise_left_shift>);
  m.impl("__lshift__.Tensor", OfCommonType<&Upstream::bitwise_left_shift>);
  m.impl("__rshift__.Scalar", ShiftedByNumber<&Upstream::bitwise_right_shift>);
  m.impl("__rshift__.Tensor", OfCommonType<&Upstream::bitwise_right_shift>);
  m.impl("maximum", OfCommonType<&Upstream::maximum>);
  m.impl("minimum", OfCommonType<&Upstream::minimum>);
  m.impl("where.self", Where);
#define TORCH_XLA_EXT_OF_FLOAT(name) m.impl(#name, OfFloat<&Upstream::name>);
  TORCH_XLA_EXT_UPSTREAM_OF_FLOATS(TORCH_XLA_EXT_OF_FLOAT)
#undef TORCH_XLA_EXT_OF_FLOAT
  m.impl("sigmoid", kFloat32<&OfFloat<&Upstream::sigmoid>>);
  m.impl("rsub.Tensor", RsubTensor);
  // division.h
  m.impl("div.Scalar",
         ComplexOnCpu<at::_ops::div_Scalar, ByNumber, &Upstream::div>::Call);
  m.impl("div.Tensor", DivTensor);
  m.impl("div.Tensor_mode", DivTensorMode);
  m.impl("floor_divide", FloorDivide);
  m.impl("fmod.Scalar", FmodByNumber);
  m.impl("fmod.Tensor", FmodTensor);
  m.impl("remainder.Scalar", RemainderScalar);
  m.impl("remainder.Tensor", RemainderTensor);
  // complex.h
  RegisterComplex(m);
  // factories.h
  m.impl("_new_zeros_with_same_feature_meta", NewZerosWithSameFeatureMeta);
  m.impl("new_empty_strided", NewEmptyStrided);
  // copies.h
  m.impl("_copy_from", CopyFrom);
  m.impl("_local_scalar_dense", LocalScalarDense);
  m.impl("_to_copy", ToCopy);
  m.impl("_to_cpu", ToCpu);
  m.impl("copy", Copy);
  m.impl("copy_", Copy_);
  m.impl("abs", ComplexOnCpu<at::_ops::abs, OfOne, &Upstream::abs>::Call);
  m.impl(
      "sigmoid_backward",
      kFloat32<&ComplexOnCpu<at::_ops::sigmoid_backward, OfTwo,
                             kBroadcast<&Upstream::sigmoid_backward>>::Call>);
  m.impl("tanh_backward",
         kFloat32<&ComplexOnCpu<at::_ops::tanh_backward, OfTwo,
                                kBroadcast<&Upstream::tanh_backward>>::Call>);
  m.impl("view_as_real_copy", ViewAsRealCopy);
  // embedding_bag.h
  m.impl("_embedding_bag", EmbeddingBag);
  m.impl("_embedding_bag_backward", EmbeddingBagBackward);
  m.impl("_embedding_bag_dense_backward", EmbeddingBagDenseBackward);
  m.impl("_embedding_bag_forward_only", EmbeddingBag);
  m.impl("_embedding_bag_per_sample_weights_backward",
         EmbeddingBagPerSampleWeightsBackward);
  // histogram.h
  m.impl("histc", Histc);
  // indexing.h
  m.impl("_chunk_cat", ChunkCat);
  m.impl("cat", Cat);
  m.impl("constant_pad_nd",
         ComplexOnCpu<at::_ops::constant_pad_nd, PadWithValue,
                      &Upstream::constant_pad_nd>::Call);
  m.impl("_index_put_impl_", IndexPutImpl_);
  m.impl("index.Tensor", Index);
  m.impl("masked_scatter", MaskedScatter);
  m.impl("masked_scatter_backward", MaskedScatterBackward);
  m.impl("index_put_", IndexPut_);
  m.impl("index_add", OfScalarsToo<IndexAdd, &Upstream::index_add>::Call);
  m.impl("index_copy", OfScalarsToo<IndexCopy, &Upstream::index_copy>::Call);
  m.impl("index_fill_.int_Scalar", IndexFill_<at::Scalar>);
  m.impl("index_fill_.int_Tensor", IndexFill_<at::Tensor>);
  m.impl("repeat", Repeat);
  m.impl("scatter.reduce",
         OfScalarsToo<ScatterReducing, &Upstream::scatter>::Call);
  m.impl("scatter.src", OfScalarsToo<IndexCopy, &Upstream::scatter>::Call);
  m.impl("scatter.value",
         OfScalarsToo<ScatterOfValue, &Upstream::scatter>::Call);
  m.impl("scatter.value_reduce",
         OfScalarsToo<ScatterReducingValue, &Upstream::scatter>::Call);
  m.impl("scatter_add", OfScalarsToo<IndexCopy, &Upstream::scatter_add>::Call);
  m.impl("scatter_reduce.two",
         OfScalarsToo<ScatterReduce, &Upstream::scatter_reduce>::Call);
  m.impl("squeeze_copy.dim", SqueezeCopyDim);
  m.impl("squeeze_copy.dims", SqueezeCopyDims);
  m.impl("empty_permuted", EmptyPermuted);
  m.impl("as_strided", AsStrided);
  m.impl("as_strided_", AsStrided_);
  m.impl("as_strided_copy", AsStridedCopy);
  m.impl("as_strided_scatter", AsStridedScatter);
  m.impl("diagonal_backward", DiagonalBackward);
  m.impl("diagonal_copy", DiagonalCopy);
  m.impl("diagonal_scatter", DiagonalScatter);
  m.impl("index_select", kOfScalarToo<&Upstream::index_select>);
#define TORCH_XLA_EXT_PAD(name)                        \
  m.impl(#name, Pad<at::_ops::name, &Upstream::name>); \
  m.impl(#name "_backward",                            \
         PadBackward<at::_ops::name##_backward, &Upstream::name##_backward>);
  TORCH_XLA_EXT_PAD(reflection_pad1d)
  TORCH_XLA_EXT_PAD(reflection_pad2d)
  TORCH_XLA_EXT_PAD(reflection_pad3d)
  TORCH_XLA_EXT_PAD(replication_pad1d)
  TORCH_XLA_EXT_PAD(replication_pad2d)
  TORCH_XLA_EXT_PAD(replication_pad3d)
#undef TORCH_XLA_EXT_PAD
  m.impl("flip", kOfScalarToo<&Upstream::flip>);
  m.impl("gather", Gather);
  m.impl("roll", Roll);
  m.impl("slice_copy.Tensor", SliceCopy);
  m.impl("slice_scatter", SliceScatter);
  m.impl("unfold_backward", UnfoldBackward);
  m.impl("unfold_copy", UnfoldCopy);
  // interpolation.h
  m.impl("pixel_shuffle", PixelShuffle);
  m.impl("upsample_bilinear2d", UpsampleBilinear2d);
  m.impl("upsample_nearest2d", UpsampleNearest2d);
  // linear_algebra.h
  m.impl("_linalg_eigh", LinalgEigh);
  m.impl("_linalg_slogdet", LinalgSlogdet);
  m.impl("_linalg_svd", LinalgSvd);
  m.impl("_cdist_forward", CdistForward);
  m.impl("_pdist_forward", PdistForward);
  m.impl("addmm", Addmm);
  m.impl("cholesky", Cholesky);
  m.impl("linalg_inv_ex", LinalgInvEx);
  // losses.h
  m.impl("huber_loss", kFloat32<&HuberLoss>);
  m.impl("huber_loss_backward", kFloat32<&HuberLossBackward>);
  m.impl("nll_loss_backward", kFloat32<&NllLossBackward>);
  m.impl("nll_loss_forward", kFloat32<&NllLossForward>);
  m.impl("nll_loss2d_forward", kFloat32<&NllLossForward>);
  m.impl("soft_margin_loss", kFloat32<&at::native::soft_margin_loss>);
  // masked_fill.h
  m.impl("masked_fill.Tensor", MaskedFill);
  // normalization.h
  m.impl("_native_batch_norm_legit", NativeBatchNormLegit);
  m.impl("_native_batch_norm_legit.no_stats", NativeBatchNormLegitNoStats);
  m.impl("native_batch_norm", NativeBatchNorm);
  m.impl("native_batch_norm_backward", NativeBatchNormBackward);
  m.impl("native_group_norm", NativeGroupNorm);
  // layer_norm.h
  m.impl("native_layer_norm", NativeLayerNorm);
  m.impl("native_layer_norm_backward", NativeLayerNormBackward);
  // pooling.h
  m.impl(
      "avg_pool2d",
      kFloat32<&AveragePool<at::_ops::avg_pool2d, &Upstream::avg_pool2d, 2>>);
  m.impl("avg_pool2d_backward", AveragePool2dBackward);
  m.impl(
      "avg_pool3d",
      kFloat32<&AveragePool<at::_ops::avg_pool3d, &Upstream::avg_pool3d, 3>>);
  m.impl("adaptive_max_pool2d", AdaptiveMaxPool2d);
  m.impl("max_pool2d_with_indices",
         MaxPoolWithIndices<at::_ops::max_pool2d_with_indices,
                            &Upstream::max_pool2d_with_indices, 2>);
  m.impl("max_pool2d_with_indices_backward",
         MaxPoolBackward<&Upstream::max_pool2d_with_indices_backward, 2>);
  m.impl("max_pool3d_with_indices",
         MaxPoolWithIndices<at::_ops::max_pool3d_with_indices,
                            &Upstream::max_pool3d_with_indices, 3>);
  m.impl("max_pool3d_with_indices_backward",
         MaxPoolBackward<&Upstream::max_pool3d_with_indices_backward, 3>);
  m.impl("max_unpool2d", MaxUnpool2d);
  m.impl("max_unpool3d", MaxUnpool3d);
  // precision.h: and of tensors without dimensions
  m.impl("_log_softmax",
         kOfScalarToo<&SoftmaxInFloat32<&Upstream::_log_softmax>>);
  m.impl("_log_softmax_backward_data",
         kFloat32<&SoftmaxBackward<&Upstream::_log_softmax_backward_data>>);
  m.impl("_softmax", kOfScalarToo<&SoftmaxInFloat32<&Upstream::_softmax>>);
  m.impl("_softmax_backward_data",
         kFloat32<&SoftmaxBackward<&Upstream::_softmax_backward_data>>);
  m.impl("binary_cross_entropy", kFloat32<&BinaryCrossEntropy>);
  m.impl("binary_cross_entropy_backward",
         kFloat32<&BinaryCrossEntropyBackward>);
  m.impl("mse_loss", kFloat32<&MseLoss>);
  m.impl("smooth_l1_loss", kFloat32<&SmoothL1Loss>);
  m.impl("smooth_l1_loss_backward", kFloat32<&SmoothL1LossBackward>);
  // random.h
  m.impl("bernoulli", Bernoulli);
  m.impl("bernoulli.p", BernoulliP);
  m.impl("bernoulli_.Tensor", Bernoulli_);
  m.impl("exponential_", Exponential_);
  m.impl("multinomial", Multinomial);
  m.impl("native_dropout", NativeDropout);
  m.impl("native_dropout_backward", NativeDropoutBackward);
  m.impl("normal.Tensor_Tensor", NormalOfTensors);
  m.impl("randperm", Randperm);
  m.impl("uniform_", Uniform_);
  // ranges.h
  m.impl("arange.start_out", ArangeOut);
  m.impl("full", Full);
  m.impl("kaiser_window", KaiserWindowOfLength);
  m.impl("kaiser_window.beta", KaiserWindow);
  m.impl("kaiser_window.periodic", KaiserWindowOfPeriod);
  m.impl("linspace", Linspace);
  // reductions.h
  m.impl("amax", OverAll<Extremum, &Upstream::amax>::Call);
  m.impl("amin", OverAll<Extremum, &Upstream::amin>::Call);
  m.impl("all", OfBooleans<OfOne, &Upstream::all>::Call);
  m.impl("all.dim", kOfScalarToo<&OfBooleans<Any, &Upstream::all>::Call>);
  m.impl("any", OfBooleans<OfOne, &Upstream::any>::Call);
  m.impl("any.dim", kOfScalarToo<&OfBooleans<Any, &Upstream::any>::Call>);
  m.impl("argmax", IndexOfExtremum<&Upstream::argmax>);
  m.impl("argmin", IndexOfExtremum<&Upstream::argmin>);
  m.impl("count_nonzero", CountNonzero);
  m.impl("count_nonzero.dim_IntList", CountNonzeroDims);
  m.impl("cummax", CumulativeExtremum<true>);
  m.impl("cummin", CumulativeExtremum<false>);
  m.impl("cumprod", kConverted<kOfScalarToo<&Cumprod>>);
  m.impl("cumsum", kConverted<kOfScalarToo<&Cumsum>>);
  m.impl("linalg_vector_norm",
         kConverted<kFloat32<&LinalgVectorNorm>, &CheckNormDtype>);
  m.impl("logsumexp", kFloat32<&Logsumexp>);
  m.impl("max.dim", OfScalarToo<ExtremumOfDim, &Upstream::max>::Call);
  m.impl("mean.dim", kConverted<kFloat32<&MeanDim>, &CheckMeanDtype>);
  m.impl("mean", kConverted<kFloat32<&Mean>, &CheckMeanDtype>);
  m.impl("min.dim", OfScalarToo<ExtremumOfDim, &Upstream::min>::Call);
  m.impl("norm.Scalar", kFloat32<&Norm>);
  m.impl("norm.ScalarOpt_dim", kFloat32<&NormDim>);
  m.impl("norm.ScalarOpt_dim_dtype",
         kConverted<kFloat32<&NormDimDtype>, &CheckNormDtype>);
  m.impl("norm.ScalarOpt_dtype",
         kConverted<kFloat32<&NormDtype>, &CheckNormDtype>);
  m.impl("prod.dim_int",
         kConverted<&OfScalarToo<ProdOfDim, &Upstream::prod>::Call>);
  m.impl(
      "std.correction",
      kFloat32<&ComplexOnCpu<at::_ops::std_correction, Deviation,
                             &OverAll<Deviation, &Upstream::std>::Call>::Call>);
  m.impl("std_mean.correction",
         kFloat32<&ComplexOnCpu<
             at::_ops::std_mean_correction, DeviationAndMean,
             &OverAll<DeviationAndMean, &Upstream::std_mean>::Call>::Call>);
  m.impl("sum.dim_IntList",
         kConverted<kFloat32<&OverAll<Sum, &Upstream::sum>::Call>>);
  m.impl("trace", Trace);
  m.impl(
      "var.correction",
      kFloat32<&ComplexOnCpu<at::_ops::var_correction, Deviation,
                             &OverAll<Deviation, &Upstream::var>::Call>::Call>);
  m.impl("var_mean.correction",
         kFloat32<&ComplexOnCpu<
             at::_ops::var_mean_correction, DeviationAndMean,
             &OverAll<DeviationAndMean, &Upstream::var_mean>::Call>::Call>);
  // scaled_mm.h
  m.impl("_scaled_mm", ScaledMm);
  // sorting.h
  m.impl("kthvalue", kOfScalarToo<&Kthvalue>);
  m.impl("sort", kOfScalarToo<&Sort>);
  m.impl("sort.stable", kOfScalarToo<&StableSort>);
  m.impl("topk", kOfScalarToo<&Topk>);
}

void RegisterForAutograd(torch::Library& m) {
  // activations.h. Functionalization composes them before there is a kernel.
  m.impl("mish_backward", kFloat32<&at::native::math_mish_backward>);
  m.impl("silu_backward", kFloat32<&at::native::math_silu_backward>);
  // composed.h
  m.impl("batch_norm", BatchNorm);
  m.impl("cross", at::native::cross);
  m.impl("diag", at::native::diag);
  m.impl("einsum", Einsum);
  m.impl("inverse", at::native::inverse);
  m.impl("kl_div", at::native::kl_div);
  m.impl("linear", LinearWithBias);
  m.impl("logdet", at::native::logdet);
  m.impl("nanmean", Nanmean);
  m.impl("nll_loss_nd", NllLossOfAnyRank);
  m.impl("qr", at::native::qr);
  m.impl("selu", at::native::selu);
  m.impl("selu_", at::native::selu_);
  m.impl("std", StdOfAll);
  m.impl("std.dim", StdOfDimensions);
  m.impl("svd", at::native::svd);
  // embedding_bag.h
  m.impl("embedding_sparse_backward", EmbeddingSparseBackward);
  // factories.h
  m.impl("_foreach_copy_", ForeachCopy_);
  // layer_norm.h
  m.impl("native_layer_norm", LayerNormWithGradients);
  // losses.h
  m.impl("ctc_loss.Tensor", CtcLoss);
  // normalization.h
  m.impl("native_group_norm", NativeGroupNorm);
  // pooling.h
  m.impl("max_pool1d", MaxPool1d);
  m.impl("max_pool2d",
         MaxPool<&Upstream::max_pool2d, &at::max_pool2d_with_indices, 2>);
  m.impl("max_pool3d",
         MaxPool<&Upstream::max_pool3d, &at::max_pool3d_with_indices, 3>);
  // strides.h
  m.impl("contiguous", Contiguous);
  m.impl("flatten.using_ints", Flatten);
  m.impl("ravel", Ravel);
  m.impl("reshape", Reshape);
  m.impl("stft", Stft);
  // views.h
  RegisterInPlaceViews(m);
  m.impl("_pad_circular", PadCircular);
  m.impl("detach", TORCH_FN(Detach));
  m.impl("fill_diagonal_", FillDiagonal_);
}

void RegisterViews(torch::Library& m) {
  // strides.h
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&CallViewOperator>());
}

// Registers kernels for all devices; for other devices than XLA's, they do the
// same as PyTorch's.
void RegisterForFunctionalization(torch::Library& m) {
  // factories.h
  RegisterFactories(m);
  // composed.h
  m.impl("polygamma_", Polygamma_);
  // masked_fill.h
  MaskedFill_::Register(m);
  // foreach.h
  RegisterForeach(m);
  // views.h
  m.impl("_pack_padded_sequence", PackPaddedSequence);
  m.impl("as_strided", AsStridedAsView);
  RegisterAsStridedOfViews(m);
  m.impl("expand", ExpandAsView);
  m.impl("unfold", UnfoldAsView);
}

// Suppresses the dispatcher's warning that kernels are replaced, which is
// intended here.
class NoWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// Never destroyed: torch's registry may be gone before.
void Register(c10::DispatchKey key, void (*define)(torch::Library&),
              const char* operators = "aten") {
  auto* const library = new torch::Library(torch::Library::IMPL, operators, key,
                                           __FILE__, __LINE__);
  define(*library);
}

bool RegisterAll() {
  torch_xla::InitXlaBackend();  // registers the upstream kernels, once
  NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&no_warnings);
  Register(c10::DispatchKey::XLA, RegisterWrittenForms);
  Register(c10::DispatchKey::XLA, RegisterForXla);
  Register(c10::DispatchKey::AutogradXLA, RegisterForAutograd);
  Register(c10::DispatchKey::AutocastXLA, RegisterAutocast);
  Register(c10::DispatchKey::Functionalize, RegisterForFunctionalization);
  Register(c10::DispatchKey::Meta, RegisterShapeChecks);
  Register(kViewsInsteadOfCopies, RegisterViews, "_");
  // Register the checks after the kernels, which the checks call.
  Register(c10::DispatchKey::XLA, RegisterCallChecks);
  Register(c10::DispatchKey::XLA, RegisterDtypeChecks);
  Register(c10::DispatchKey::Functionalize, RegisterOutChecks);
  Register(c10::DispatchKey::Functionalize, RegisterInPlaceChecks);
  Register(c10::DispatchKey::Functionalize, RegisterOverlapChecks);
  Register(c10::DispatchKey::AutogradXLA, RegisterOutCompositions);
  return true;
}

}  // namespace
}  // namespace aten_overrides

void RegisterAtenOverrides() {
  [[maybe_unused]] static const bool is_done = aten_overrides::RegisterAll();
}

}  // namespace torch_xla_ext
