// Checks of calls that read or write elements by their indices.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/WrapDimUtils.h>

#include <optional>
#include <type_traits>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/size_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

inline void CheckTake(const at::Tensor& self, const at::Tensor& index) {
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0,
                    "take(): tried to take from an empty tensor");
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
    if (type == at::kBool || type == at::kByte) return;  // see WithoutMasks()
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

// The indices of the elements that masks select, if their number must be that
// of the values.
inline c10::List<std::optional<at::Tensor>> WithoutMasks(
    const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
    const at::Tensor& values) {
  const auto is_mask = [](const std::optional<at::Tensor>& index) {
    return index && index->defined() && index->dim() > 0 &&
           (index->scalar_type() == at::kBool ||
            index->scalar_type() == at::kByte);
  };
  bool has_mask = false, has_number = false;
  for (const std::optional<at::Tensor> index : indices) {
    has_mask |= is_mask(index);
    has_number |= index && index->defined() && index->dim() == 0;
  }
  if (!has_mask || has_number || values.numel() == 1) return indices;
  c10::List<std::optional<at::Tensor>> result;
  for (const std::optional<at::Tensor> index : indices) {
    if (!is_mask(index)) {
      result.push_back(index);
      continue;
    }
    for (const at::Tensor& one : at::nonzero(*index).unbind(1)) {
      result.push_back(one);
    }
  }
  CheckAssignment(self, result, values);
  return result;
}

inline void CheckIndices(const at::Tensor& self,
                         const c10::List<std::optional<at::Tensor>>& indices) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(),
                    " (got ", indices.size(), ")");
  // An empty index leaves no elements, whatever the others are.
  bool is_empty = false;
  for (const std::optional<at::Tensor> index : indices) {
    is_empty |= index && index->defined() && index->numel() == 0;
  }
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
    TORCH_CHECK_INDEX(is_mask || is_empty || self.size(dim) != 0,
                      "index is out of bounds for dimension with size 0");
    dim += is_mask ? index->dim() : 1;
  }
}

// Whether an assignment is `x[mask] = number`, whose dtype may be another one.
inline bool FillsMask(const c10::List<std::optional<at::Tensor>>& indices,
                      const at::Tensor& values, bool accumulate) {
  if (accumulate || values.numel() != 1) return false;
  size_t masks = 0;
  for (const std::optional<at::Tensor> index : indices) {
    if (!index || !index->defined()) continue;
    if (index->scalar_type() != at::kBool && index->scalar_type() != at::kByte)
      return false;
    ++masks;
  }
  return masks == 1;
}

inline void CheckIndexPut(const at::Tensor& self,
                          const c10::List<std::optional<at::Tensor>>& indices,
                          const at::Tensor& values, bool accumulate) {
  CheckIndices(self, indices);
  TORCH_CHECK_INDEX(self.scalar_type() == values.scalar_type() ||
                        FillsMask(indices, values, accumulate),
                    "Index put requires the source and destination dtypes "
                    "match, got ",
                    self.scalar_type(), " for the destination and ",
                    values.scalar_type(), " for the source.");
  CheckAssignment(self, indices, values);
}

template <typename Value>
void CheckIndexFill(const char* name, const at::Tensor& self, int64_t dim,
                    const at::Tensor& index, const Value& value) {
  at::maybe_wrap_dim(dim, self.dim());
  CheckIndexed(name, self, dim, index);
  if constexpr (std::is_same_v<Value, at::Tensor>) {
    TORCH_CHECK(value.dim() == 0,
                "index_fill_ only supports a 0-dimensional value tensor, but "
                "got tensor with ",
                value.dim(), " dimension(s).");
  }
  TORCH_CHECK(self.is_complex() || !IsComplex(value),
              "index_fill_(): Converting complex Scalar to non-complex type is "
              "not supported");
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong,
                    "index_fill_(): Expected dtype int64 for index.");
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
}

inline void CheckEmbedding(const char* name, const at::Tensor& weight,
                           const at::Tensor& indices) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  CheckIndexed(name, weight, 0, indices);
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
  if (source.numel() != 0 && self.numel() != 0) {
    at::meta::index_add(self, dim, index, source, alpha);
    return;
  }
  CheckIndexed("index_add", self, dim, index);
  const auto rest = [dim](const at::Tensor& tensor) {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    if (!sizes.empty()) {
      sizes.erase(sizes.begin() + at::maybe_wrap_dim(dim, tensor.dim()));
    }
    return sizes;
  };
  const int64_t count = source.dim() == 0 ? 1 : source.size(dim);
  TORCH_CHECK(index.numel() == count, "index_add_(): Number of indices (",
              index.numel(), ") should be equal to source.size(dim): (", count,
              ")");
  TORCH_CHECK(self.dim() != source.dim() || rest(self) == rest(source),
              "source tensor shape must match self tensor shape, excluding the "
              "specified dimension. Got self.shape = ",
              self.sizes(), " source.shape = ", source.sizes());
}

// torch_xla's own functions copy integers of one type to another.
inline void CheckIndexCopy(const at::Tensor& self, int64_t dim,
                           const at::Tensor& index, const at::Tensor& source) {
  CheckIndexed("index_copy", self, dim, index);
  const bool are_integers =
      at::isIntegralType(self.scalar_type(), /*includeBool=*/true) &&
      at::isIntegralType(source.scalar_type(), /*includeBool=*/true);
  at::meta::index_copy(
      self, dim, index,
      at::detail::empty_meta(source.sizes(), are_integers
                                                 ? self.scalar_type()
                                                 : source.scalar_type()));
}

inline void CheckIndexSelect(const at::Tensor& self, int64_t dim,
                             const at::Tensor& index) {
  at::maybe_wrap_dim(dim, self.dim());
  CheckIndexed("index_select", self, dim, index);
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
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0,
                    "put_(): Tried to put elements into an empty tensor");
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
