// Checks of calls that read or write elements by their indices.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace torch_xla_ext::aten_overrides {

inline void CheckTake(const at::Tensor&, const at::Tensor& index) {
  TORCH_CHECK(index.scalar_type() == at::kLong,
              "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
}

// Whether the values of an assignment `self[indices] = values` can be expanded
// to the selected elements. The number that a mask selects is not known here.
inline void CheckAssignment(const at::Tensor& self,
                            const c10::List<std::optional<at::Tensor>>& indices,
                            const at::Tensor& values) {
  std::vector<at::Tensor> described;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (!index || !index->defined()) {
      described.emplace_back();
      continue;
    }
    const at::ScalarType type = index->scalar_type();
    if (type == at::kBool || type == at::kByte) {
      const bool is_whole =
          indices.size() == 1 && values.dim() == 1 + self.dim() - index->dim();
      TORCH_CHECK(
          !is_whole || values.size(0) <= std::max<int64_t>(index->numel(), 1),
          "shape mismatch: value tensor of shape ", values.sizes(),
          " cannot be broadcast to indexing result of a mask of ",
          index->sizes());
      return;
    }
    described.push_back(at::detail::empty_meta(index->sizes(), type));
  }
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& index : described) {
    list.push_back(index.defined() ? std::optional(index) : std::nullopt);
  }
  const at::Tensor chosen = at::meta::index(
      at::detail::empty_meta(self.sizes(), self.scalar_type()), list);
  TORCH_CHECK(at::is_expandable_to(values.sizes(), chosen.sizes()),
              "shape mismatch: value tensor of shape ", values.sizes(),
              " cannot be broadcast to indexing result of shape ",
              chosen.sizes());
}

inline void CheckIndices(const at::Tensor& self,
                         const c10::List<std::optional<at::Tensor>>& indices) {
  int64_t dim = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (!index || !index->defined()) {
      ++dim;
      continue;
    }
    const at::ScalarType type = index->scalar_type();
    TORCH_CHECK_INDEX(type == at::kLong || type == at::kInt ||
                          type == at::kByte || type == at::kBool,
                      "tensors used as indices must be long, int, byte or "
                      "bool tensors");
    const bool is_mask = type == at::kByte || type == at::kBool;
    for (int64_t j = 0; is_mask && j < index->dim(); ++j) {
      TORCH_CHECK_INDEX(
          dim + j < self.dim() && index->size(j) == self.size(dim + j),
          "The shape of the mask ", index->sizes(), " at index ", i,
          " does not match the shape of the indexed tensor ", self.sizes());
    }
    dim += is_mask ? index->dim() : 1;
  }
}

inline void CheckIndexPut(const at::Tensor& self,
                          const c10::List<std::optional<at::Tensor>>& indices,
                          const at::Tensor& values) {
  CheckIndices(self, indices);
  TORCH_CHECK_INDEX(self.scalar_type() == values.scalar_type(),
                    "Index put requires the source and destination dtypes "
                    "match, got ",
                    self.scalar_type(), " for the destination and ",
                    values.scalar_type(), " for the source.");
  CheckAssignment(self, indices, values);
}

inline void CheckIndexFill(const at::Tensor&, int64_t,
                           const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong,
                    "index_fill_(): Expected dtype int64 for index.");
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
}

inline void CheckEmbedding(const at::Tensor& weight,
                           const at::Tensor& indices) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  TORCH_CHECK(
      indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
      "Expected tensor for argument #1 'indices' to have one of the "
      "following scalar types: Long, Int; but got ",
      indices.scalar_type(), " instead");
}

inline void CheckEmbeddingBag(const at::Tensor&, const at::Tensor& indices,
                              const at::Tensor& offsets) {
  for (const at::Tensor* const tensor : {&indices, &offsets}) {
    const at::ScalarType type = tensor->scalar_type();
    TORCH_CHECK(type == at::kLong || type == at::kInt,
                "embedding_bag: expected indices and offsets of dtype Long or "
                "Int, but got ",
                type);
  }
}

// PyTorch's function looks at the first slices, of which there may be none.
inline void CheckIndexAdd(const at::Tensor& self, int64_t dim,
                          const at::Tensor& index, const at::Tensor& source,
                          const at::Scalar& alpha) {
  if (source.numel() != 0) {
    at::meta::index_add(self, dim, index, source, alpha);
  }
}

// torch_xla's own functions copy integers of one type to another.
inline void CheckIndexCopy(const at::Tensor& self, int64_t dim,
                           const at::Tensor& index, const at::Tensor& source) {
  at::meta::index_copy(
      self, dim, index,
      at::detail::empty_meta(source.sizes(), self.scalar_type()));
}

inline void CheckIndexSelect(const at::Tensor& self, int64_t dim,
                             const at::Tensor& index) {
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1,
                    "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(
      index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
      "index_select(): Expected dtype int32 or int64 for index");
}

inline void CheckPut(at::Tensor& self, const at::Tensor& index,
                     const at::Tensor& source) {
  TORCH_CHECK_INDEX(index.numel() == source.numel(),
                    "put_(): Expected source and index to have the same number "
                    "of elements, but got source with ",
                    source.numel(), " elements, index with ", index.numel());
  TORCH_CHECK(index.scalar_type() == at::kLong,
              "put_(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK(
      self.scalar_type() == source.scalar_type(),
      "put_(): self and source expected to have the same dtype, but got "
      "self.dtype = ",
      self.scalar_type(), " and source.dtype = ", source.scalar_type());
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_CHECKS_H_
