// Completes the hashes of nodes whose upstream hash omits some of their
// attributes.
//
// A node's hash seed must cover everything, besides the operands, that its
// lowering depends on. For the nodes below, upstream's seed is incomplete. For
// example, pixel_shuffle by 4 had the hash of pixel_shuffle by 2, so it reused
// that program, and even its shape, because torch_xla also caches shapes by
// hash.
//
// The upstream binary makes these nodes with functions and constructors that it
// calls through its PLT, so the calls arrive here. One operand is replaced by a
// node that passes it through and whose hash covers what was missing. When
// building from source, patches/ complete the seeds
// instead.
#include <torch/csrc/lazy/core/hash.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/pass_through.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace {

using torch::lazy::Hash;
using torch::lazy::hash_t;
using torch::lazy::MHash;
using torch::lazy::NodePtr;
using torch::lazy::OpList;
using torch::lazy::Value;

Value With(const Value& operand, hash_t attributes) {
  return Value(std::make_shared<torch_xla::PassThrough>(operand, attributes),
               0);
}

OpList WithFirst(OpList operands, hash_t attributes,
                 std::vector<Value>* storage) {
  *storage = operands.vec();
  if (!storage->empty()) (*storage)[0] = With((*storage)[0], attributes);
  return *storage;
}

hash_t HashOf(const xla::Shape& shape) { return Hash(shape.ToString()); }

// 1, 1.0 and True have different hashes.
hash_t HashOf(const at::Scalar& scalar) {
  return MHash(Hash(scalar), static_cast<int64_t>(scalar.type()));
}

template <typename T>
int64_t OrMinusOne(const std::optional<T>& value) {
  return value ? static_cast<int64_t>(*value) : -1;
}

}  // namespace

// STAND_BEFORE(name, symbol, result, parameters) defines the function that is
// exported as `symbol`; Upstream<name>() is the upstream binary's. A
// constructor is a function of `this` and its parameters, and an argument of a
// class type that is passed by value arrives as an address.
template <auto function>
auto Upstream() {
  static const auto upstream = torch_xla::UpstreamFunction(function);
  return upstream;
}

#define STAND_BEFORE(name, symbol, result, ...)                            \
  __attribute__((visibility("default"))) result name(__VA_ARGS__) __asm__( \
      symbol);                                                             \
  result name(__VA_ARGS__)

#define VALUE "RKN5torch4lazy5ValueE"
#define SCALAR "RKN3c106ScalarE"
#define STRING "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define TENSOR                                                                 \
  "RKN3c1013intrusive_ptrINS_9XLATensorENS0_6detail34intrusive_target_default" \
  "_null_typeIS2_EEEE"

// aten::celu: alpha.
STAND_BEFORE(Celu, "_ZN9torch_xla4CeluE" VALUE SCALAR, NodePtr,
             const Value& input, const at::Scalar& alpha) {
  return Upstream<&Celu>()(With(input, HashOf(alpha)), alpha);
}

// aten::elu_backward: the three factors.
STAND_BEFORE(EluBackward,
             "_ZN9torch_xla11EluBackwardE" VALUE "S4_" SCALAR "S8_S8_", NodePtr,
             const Value& grad_output, const Value& output,
             const at::Scalar& alpha, const at::Scalar& scale,
             const at::Scalar& input_scale) {
  const hash_t attributes =
      MHash(HashOf(alpha), HashOf(scale), HashOf(input_scale));
  return Upstream<&EluBackward>()(With(grad_output, attributes), output, alpha,
                                  scale, input_scale);
}

// aten::pixel_shuffle: the factor.
STAND_BEFORE(PixelShuffle, "_ZN9torch_xla12PixelShuffleE" VALUE "l", NodePtr,
             const Value& input, int64_t upscale_factor) {
  return Upstream<&PixelShuffle>()(With(input, MHash(upscale_factor)),
                                   upscale_factor);
}

// aten::index_add and aten::index_copy: the dimension. The functions that make
// the nodes are not exported; their callers, interposed on here, take a tensor.
torch_xla::XLATensorPtr With(const torch_xla::XLATensorPtr& tensor,
                             hash_t attributes) {
  return tensor->CreateFrom(With(tensor->GetIrValue(), attributes),
                            tensor->dtype(), /*delay_eager_execution=*/true);
}

STAND_BEFORE(IndexAdd, "_ZN9torch_xla8IndexAddE" TENSOR "lS8_S8_", Value,
             const torch_xla::XLATensorPtr& base, int64_t dim,
             const torch_xla::XLATensorPtr& index,
             const torch_xla::XLATensorPtr& source) {
  return Upstream<&IndexAdd>()(With(base, MHash(dim)), dim, index, source);
}

STAND_BEFORE(IndexCopy, "_ZN9torch_xla9IndexCopyE" TENSOR "lS8_S8_", Value,
             const torch_xla::XLATensorPtr& base, int64_t dim,
             const torch_xla::XLATensorPtr& index,
             const torch_xla::XLATensorPtr& source) {
  return Upstream<&IndexCopy>()(With(base, MHash(dim)), dim, index, source);
}

// aten::avg_pool*d: divisor_override.
STAND_BEFORE(AvgPoolNd,
             "_ZN9torch_xla9AvgPoolNdC1E" VALUE
             "lSt6vectorIlSaIlEES8_S8_bbSt8optionalIiE",
             void, void* self, const Value& input, int64_t spatial_dim_count,
             void* kernel_size, void* stride, void* padding, bool ceil_mode,
             bool count_include_pad, std::optional<int> divisor_override) {
  Upstream<&AvgPoolNd>()(self, With(input, MHash(OrMinusOne(divisor_override))),
                         spatial_dim_count, kernel_size, stride, padding,
                         ceil_mode, count_include_pad, divisor_override);
}

// aten::_amp_update_scale_: the factors and the interval.
STAND_BEFORE(AmpUpdateScale,
             "_ZN9torch_xla14AmpUpdateScaleC1E" VALUE "S5_S5_ddi", void,
             void* self, const Value& current_scale,
             const Value& growth_tracker, const Value& found_inf,
             double growth_factor, double backoff_factor, int growth_interval) {
  const hash_t attributes =
      MHash(growth_factor, backoff_factor, growth_interval);
  Upstream<&AmpUpdateScale>()(self, current_scale, growth_tracker,
                              With(found_inf, attributes), growth_factor,
                              backoff_factor, growth_interval);
}

// aten::bernoulli_ and aten::exponential_: the result's shape and dtype.
STAND_BEFORE(Bernoulli, "_ZN9torch_xla9BernoulliC1E" VALUE "S5_N3xla5ShapeE",
             void, void* self, const Value& probability, const Value& seed,
             const xla::Shape* shape) {
  Upstream<&Bernoulli>()(self, probability, With(seed, HashOf(*shape)), shape);
}

STAND_BEFORE(Exponential,
             "_ZN9torch_xla11ExponentialC1E" VALUE "S5_N3xla5ShapeE", void,
             void* self, const Value& lambda, const Value& seed,
             const xla::Shape* shape) {
  Upstream<&Exponential>()(self, lambda, With(seed, HashOf(*shape)), shape);
}

// aten::cat: the result's dtype.
STAND_BEFORE(Cat,
             "_ZN9torch_xla3CatC1EN3c108ArrayRefIN5torch4lazy5ValueEEElNS1_"
             "10ScalarTypeE",
             void, void* self, OpList values, int64_t dim,
             at::ScalarType dtype) {
  std::vector<Value> storage;
  const hash_t attributes = MHash(static_cast<int64_t>(dtype));
  Upstream<&Cat>()(self, WithFirst(values, attributes, &storage), dim, dtype);
}

// quantize_tensor and dequantize_tensor: the axis.
#define QUANTIZE_PARAMETERS \
  VALUE "RKSt6vectorIfSaIfEERKS6_IiSaIiEEii" STRING "i"

STAND_BEFORE(QuantizeTensor,
             "_ZN9torch_xla14QuantizeTensorC1E" QUANTIZE_PARAMETERS, void,
             void* self, const Value& input, const std::vector<float>& scale,
             const std::vector<int>& zero_point, int quant_min, int quant_max,
             const std::string& dtype, int axis) {
  Upstream<&QuantizeTensor>()(self, With(input, MHash(axis)), scale, zero_point,
                              quant_min, quant_max, dtype, axis);
}

STAND_BEFORE(DequantizeTensor,
             "_ZN9torch_xla16DequantizeTensorC1E" QUANTIZE_PARAMETERS, void,
             void* self, const Value& input, const std::vector<float>& scale,
             const std::vector<int>& zero_point, int quant_min, int quant_max,
             const std::string& dtype, int axis) {
  Upstream<&DequantizeTensor>()(self, With(input, MHash(axis)), scale,
                                zero_point, quant_min, quant_max, dtype, axis);
}

// Collectives: the channel, and whether the groups hold global device ids.
hash_t HashOf(std::optional<int> channel_id,
              std::optional<bool> use_global_device_ids) {
  return MHash(OrMinusOne(channel_id), OrMinusOne(use_global_device_ids));
}

STAND_BEFORE(AllGather,
             "_ZN9torch_xla9AllGatherC1E" VALUE
             "S5_llSt6vectorIS6_IlSaIlEESaIS8_EEbSt8optionalIiESB_IbE",
             void, void* self, const Value& input, const Value& token,
             int64_t dim, int64_t shard_count, void* groups, bool pin_layout,
             std::optional<int> channel_id,
             std::optional<bool> use_global_device_ids) {
  Upstream<&AllGather>()(
      self, With(input, HashOf(channel_id, use_global_device_ids)), token, dim,
      shard_count, groups, pin_layout, channel_id, use_global_device_ids);
}

STAND_BEFORE(ReduceScatter,
             "_ZN9torch_xla13ReduceScatterC1ENS_13AllReduceTypeE" VALUE
             "S6_dllSt6vectorIS7_IlSaIlEESaIS9_EEbSt8optionalIiESC_IbE",
             void, void* self, int reduce_type, const Value& input,
             const Value& token, double scale, int64_t scatter_dim,
             int64_t shard_count, void* groups, bool pin_layout,
             std::optional<int> channel_id,
             std::optional<bool> use_global_device_ids) {
  Upstream<&ReduceScatter>()(
      self, reduce_type, With(input, HashOf(channel_id, use_global_device_ids)),
      token, scale, scatter_dim, shard_count, groups, pin_layout, channel_id,
      use_global_device_ids);
}

// CustomSharding: the full shape, when the node goes back from a shard's shape
// to the full one. The operand's hash covers only the shard's shape.
STAND_BEFORE(CustomSharding,
             "_ZN9torch_xla14CustomShardingC1E" VALUE
             "RKN3xla5ShapeERKNS0_4TypeE",
             void, void* self, const Value& input, const xla::Shape& shape,
             const int& type) {
  Upstream<&CustomSharding>()(self, With(input, HashOf(shape)), shape, type);
}

#undef QUANTIZE_PARAMETERS
#undef TENSOR
#undef STRING
#undef SCALAR
#undef VALUE
#undef STAND_BEFORE
