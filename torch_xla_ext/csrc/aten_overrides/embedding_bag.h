// EmbeddingBag: sums, means and maxima of bags of rows.
//
// torch_xla has a kernel only for sums without gradients, and runs the rest on
// the CPU. Also embeddings with sparse gradients.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_EMBEDDING_BAG_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_EMBEDDING_BAG_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The modes of aten::_embedding_bag.
inline constexpr int64_t kBagSum = 0, kBagMean = 1, kBagMax = 2;

// 16-bit floats are summed in float32.
inline at::ScalarType SumType(const at::Tensor& tensor) {
  return Has16Bits(tensor) ? at::kFloat : tensor.scalar_type();
}

// One number per row, to multiply rows by.
inline at::Tensor AsColumn(const at::Tensor& tensor) {
  return at::view_copy(tensor, {-1, 1});
}

// The bag of each index: the number of bags that begin at or before it.
inline at::Tensor BagOfEachIndex(const at::Tensor& indices,
                                 const at::Tensor& offsets) {
  const int64_t count = indices.numel();
  const at::Tensor begins = at::index_add(
      at::zeros({count + 1}, indices.options().dtype(at::kLong)), 0,
      offsets.to(at::kLong), at::ones_like(offsets, at::kLong));
  return at::sub(at::cumsum(at::slice_copy(begins, 0, 0, count), 0), 1);
}

// The results are those of CUDA: the output, the bag of each index, the number
// of indices in each bag (as long as `offsets`), and the index of each maximum.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> EmbeddingBag(
    const at::Tensor& weight, const at::Tensor& indices,
    const at::Tensor& offsets, bool /*scale_grad_by_freq*/, int64_t mode,
    bool /*sparse*/, const std::optional<at::Tensor>& per_sample_weights,
    bool include_last_offset, int64_t padding_idx) {
  const bool is_weighted =
      per_sample_weights.has_value() && per_sample_weights->defined();
  TORCH_CHECK(indices.dim() == 1 && offsets.dim() == 1 && weight.dim() == 2,
              "embedding_bag: expected weight with 2 dimensions, and indices "
              "and offsets with 1, but they have ",
              weight.dim(), ", ", indices.dim(), " and ", offsets.dim());
  TORCH_CHECK(!is_weighted || mode == kBagSum,
              "embedding_bag: per_sample_weights only supported with "
              "mode='sum'");
  TORCH_CHECK(!is_weighted || per_sample_weights->sizes() == indices.sizes(),
              "embedding_bag: per_sample_weights must have the shape of the "
              "indices, ",
              indices.sizes(), ", but has ",
              is_weighted ? per_sample_weights->sizes() : at::IntArrayRef());
  const int64_t count = indices.numel(), width = weight.size(1);
  const int64_t bags = offsets.numel() - (include_last_offset ? 1 : 0);
  TORCH_CHECK(bags >= 0,
              "embedding_bag: with include_last_offset, offsets "
              "must have 1 element at least");
  const at::TensorOptions places = indices.options();
  const at::Tensor no_maxima =
      at::zeros({mode == kBagMax ? bags : 0, width}, places);
  if (count == 0 || bags == 0) {
    return {at::zeros({bags, width}, weight.options()), at::zeros({0}, places),
            at::zeros(offsets.sizes(), places),
            mode == kBagMax ? no_maxima : at::zeros({0}, places)};
  }
  const at::ScalarType type = SumType(weight);
  const at::Tensor bag = BagOfEachIndex(indices, offsets);
  const at::Tensor is_counted = at::ne(indices, padding_idx);
  // With include_last_offset, the last offset begins an additional bag without
  // indices.
  const at::Tensor sizes =
      at::index_add(at::zeros({offsets.numel()}, places.dtype(at::kLong)), 0,
                    bag, is_counted.to(at::kLong));
  const at::Tensor bag_sizes = AsColumn(at::slice_copy(sizes, 0, 0, bags));
  at::Tensor rows = at::index_select(weight, 0, indices).to(type);
  at::Tensor output, maxima = at::zeros({0}, places);
  if (mode == kBagMax) {
    const at::Tensor to = at::expand_copy(AsColumn(bag), {count, width});
    rows = at::where(AsColumn(is_counted), rows,
                     at::full({}, -INFINITY, rows.options()));
    const at::Tensor largest =
        at::scatter_reduce(at::full({bags, width}, -INFINITY, rows.options()),
                           0, to, rows, "amax");
    // The first row that has the maximum.
    const at::Tensor at_row =
        AsColumn(at::arange(count, places.dtype(at::kLong)));
    const at::Tensor is_largest = at::logical_and(
        AsColumn(is_counted), at::eq(rows, at::index_select(largest, 0, bag)));
    const at::Tensor row = at::scatter_reduce(
        at::full({bags, width}, count - 1, places.dtype(at::kLong)), 0, to,
        at::where(is_largest, at_row, count - 1), "amin");
    const at::Tensor is_empty = at::eq(bag_sizes, 0);
    output = at::where(is_empty, at::zeros({}, rows.options()), largest);
    maxima = at::where(
        is_empty, at::zeros({}, places),
        at::view_copy(at::index_select(indices, 0, at::view_copy(row, {-1})),
                      {bags, width}));
  } else {
    if (is_weighted) rows = at::mul(rows, AsColumn(*per_sample_weights));
    rows = at::where(AsColumn(is_counted), rows, at::zeros({}, rows.options()));
    output =
        at::index_add(at::zeros({bags, width}, rows.options()), 0, bag, rows);
    if (mode == kBagMean) {
      output = at::div(output, at::clamp_min(bag_sizes, 1));
    }
  }
  return {output.to(weight.scalar_type()), bag.to(indices.scalar_type()),
          sizes.to(indices.scalar_type()), maxima};
}

inline at::Tensor EmbeddingBagDenseBackward(
    const at::Tensor& grad, const at::Tensor& indices,
    const at::Tensor& offset2bag, const at::Tensor& bag_size,
    const at::Tensor& maximum_indices, int64_t num_weights,
    bool scale_grad_by_freq, int64_t mode,
    const std::optional<at::Tensor>& per_sample_weights, int64_t padding_idx) {
  const at::ScalarType type = SumType(grad);
  const int64_t width = grad.size(1);
  const at::Tensor zeros =
      at::zeros({num_weights, width}, grad.options().dtype(type));
  if (indices.numel() == 0 || grad.numel() == 0) {
    return zeros.to(grad.scalar_type());
  }
  const at::Tensor numbers = grad.to(type);
  const at::Tensor nothing = at::zeros({}, numbers.options());
  if (mode == kBagMax) {
    const at::Tensor has_rows =
        AsColumn(at::ne(at::slice_copy(bag_size, 0, 0, grad.size(0)), 0));
    return at::scatter_add(zeros, 0, maximum_indices.to(at::kLong),
                           at::where(has_rows, numbers, nothing))
        .to(grad.scalar_type());
  }
  const at::Tensor bag = offset2bag.to(at::kLong);
  at::Tensor rows = at::index_select(numbers, 0, bag);
  if (mode == kBagMean) {
    rows = at::div(
        rows, AsColumn(at::clamp_min(at::index_select(bag_size, 0, bag), 1)));
  }
  if (per_sample_weights.has_value() && per_sample_weights->defined()) {
    rows = at::mul(rows, AsColumn(*per_sample_weights));
  }
  const at::Tensor to = indices.to(at::kLong);
  if (scale_grad_by_freq) {
    const at::Tensor frequency = at::index_add(
        at::zeros({num_weights}, to.options()), 0, to, at::ones_like(to));
    rows = at::div(rows, AsColumn(at::index_select(frequency, 0, to)));
  }
  rows = at::where(AsColumn(at::ne(indices, padding_idx)), rows, nothing);
  return at::index_add(zeros, 0, to, rows).to(grad.scalar_type());
}

// XLA tensors have no sparse gradients; this one is dense.
inline at::Tensor EmbeddingSparseBackward(const at::Tensor& grad,
                                          const at::Tensor& indices,
                                          int64_t num_weights,
                                          int64_t padding_idx,
                                          bool scale_grad_by_freq) {
  TORCH_WARN_ONCE(
      "embedding: XLA tensors have no sparse gradients; this one is dense.");
  return at::embedding_dense_backward(grad, indices, num_weights, padding_idx,
                                      scale_grad_by_freq);
}

// The gradient is always dense, even if a sparse one is requested.
inline at::Tensor EmbeddingBagBackward(
    const at::Tensor& grad, const at::Tensor& indices,
    const at::Tensor& /*offsets*/, const at::Tensor& offset2bag,
    const at::Tensor& bag_size, const at::Tensor& maximum_indices,
    int64_t num_weights, bool scale_grad_by_freq, int64_t mode, bool sparse,
    const std::optional<at::Tensor>& per_sample_weights, int64_t padding_idx) {
  if (sparse) {
    TORCH_WARN_ONCE(
        "embedding_bag: XLA tensors have no sparse gradients; this one is "
        "dense.");
  }
  return EmbeddingBagDenseBackward(
      grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
      scale_grad_by_freq, mode, per_sample_weights, padding_idx);
}

inline at::Tensor EmbeddingBagPerSampleWeightsBackward(
    const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& indices,
    const at::Tensor& /*offsets*/, const at::Tensor& offset2bag,
    int64_t /*mode*/, int64_t padding_idx) {
  if (indices.numel() == 0 || grad.numel() == 0) {
    return at::zeros(indices.sizes(), grad.options());
  }
  const at::ScalarType type = SumType(grad);
  const at::Tensor rows =
      at::mul(at::index_select(grad.to(type), 0, offset2bag),
              at::index_select(weight, 0, indices).to(type));
  return at::where(at::ne(indices, padding_idx), at::sum(rows, 1),
                   at::zeros({}, rows.options()))
      .to(grad.scalar_type());
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_EMBEDDING_BAG_H_
