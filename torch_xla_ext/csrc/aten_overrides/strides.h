// The strides that a view of an XLA tensor has in PyTorch. They decide whether
// contiguous() and reshape() copy.
//
// XLA tensors report that they are row-major, also of their views:
// `x.t().contiguous()` was x.t() itself, and a write to one of them changed the
// other.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_STRIDES_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_STRIDES_H_

#include <ATen/ATen.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/InferSize.h>
#include <ATen/NativeFunctions.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_xla_ext::aten_overrides {

// A dispatch key that only PyTorch's own tests use.
constexpr c10::DispatchKey kViewsInsteadOfCopies =
    c10::DispatchKey::TESTING_ONLY_GenericMode;

// The view operator of a copying one: aten::t of aten::t_copy.
inline const c10::OperatorHandle& ViewOperator(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorName, c10::OperatorHandle> known;
  const auto found = known.find(op.operator_name());
  if (found != known.end()) return found->second;
  constexpr std::string_view kSuffix = "_copy";
  c10::OperatorName name = op.operator_name();
  std::optional<c10::OperatorHandle> view;
  if (name.name.size() > kSuffix.size() &&
      std::string_view(name.name).substr(name.name.size() - kSuffix.size()) ==
          kSuffix) {
    name.name.resize(name.name.size() - kSuffix.size());
    view = c10::Dispatcher::singleton().findSchema(name);
  }
  return known.emplace(op.operator_name(), view.value_or(op)).first->second;
}

inline void CallViewOperator(const c10::OperatorHandle& op,
                             torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(kViewsInsteadOfCopies);
  ViewOperator(op).callBoxed(stack);
}

// Strides of tensors that are neither views nor row-major: copies that replace
// views in the trace of a program.
class StridesOfCopies {
 public:
  static StridesOfCopies& Get() {
    static auto* const strides = new StridesOfCopies;
    return *strides;
  }

  // Sets the strides for as long as `copy`, or a view of it, lives.
  void Set(const at::Tensor& copy, std::vector<int64_t> strides) {
    const std::lock_guard lock(mutex_);
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) {
                                    return entry.storage.expired();
                                  }),
                   entries_.end());
    const c10::Storage& storage = copy.unsafeGetTensorImpl()->unsafe_storage();
    entries_.push_back({storage.getWeakStorageImpl(), std::move(strides)});
  }

  std::optional<std::vector<int64_t>> Find(c10::StorageImpl* storage) {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      // An expired entry keeps the address from being reused.
      if (entry.storage._unsafe_get_target() == storage) return entry.strides;
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::vector<int64_t> strides;
  };

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

inline at::functionalization::FunctionalStorageImpl* FunctionalStorageOf(
    const at::Tensor& self) {
  return static_cast<at::functionalization::FunctionalStorageImpl*>(
      self.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// A meta tensor with the shape and the strides of the tensor that `self` is a
// view of; nothing if sizes are symbolic.
inline std::optional<at::Tensor> BaseWithStrides(const at::Tensor& self) {
  auto* const storage = FunctionalStorageOf(self);
  const at::Tensor& base = storage->base();
  if (base.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return std::nullopt;
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto options = base.options().device(at::kMeta);
  const auto strides = StridesOfCopies::Get().Find(storage);
  return strides ? at::empty_strided(base.sizes(), *strides, options)
                 : at::empty(base.sizes(), options);
}

// What `self` is of the meta tensor of its base; nothing if it is a view that
// PyTorch does not have (`x.t().view(-1)`).
inline std::optional<at::Tensor> ViewWithStrides(const at::Tensor& self,
                                                 const at::Tensor& base) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  // The views were recorded as the copying operators that XLA has.
  const c10::impl::IncludeDispatchKeyGuard views(kViewsInsteadOfCopies);
  try {
    return at::functionalization::impl::unsafeGetFunctionalWrapper(self)
        ->apply_view_metas(base);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// A meta tensor with a tensor's shape and its strides in PyTorch; nothing if
// the tensor is row-major because it is not a view, or is a view that PyTorch
// does not have.
inline std::optional<at::Tensor> WithStrides(const at::Tensor& self) {
  namespace functionalization = at::functionalization::impl;
  if (!functionalization::isFunctionalTensor(self)) return std::nullopt;
  if (functionalization::isBaseTensor(self) &&
      !StridesOfCopies::Get().Find(FunctionalStorageOf(self))) {
    return std::nullopt;
  }
  const std::optional<at::Tensor> base = BaseWithStrides(self);
  return base ? ViewWithStrides(self, *base) : std::nullopt;
}

// Whether two elements of a tensor with these strides share memory.
inline bool Overlaps(at::IntArrayRef size, at::IntArrayRef stride) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // strides and sizes
  int64_t count = 1, last = 0;
  for (size_t i = 0; i < size.size(); ++i) {
    count *= size[i];
    if (size[i] > 1) dims.emplace_back(stride[i], size[i]);
  }
  if (count == 0) return false;
  std::sort(dims.begin(), dims.end());
  bool is_nested = true;
  for (const auto& [step, steps] : dims) {
    is_nested &= step > last;
    last += step * (steps - 1);
  }
  if (is_nested) return false;
  if (count > last + 1) return true;
  std::vector<bool> is_taken(last + 1);
  std::vector<int64_t> places = {0};
  for (const auto& [step, steps] : dims) {
    const size_t before = places.size();
    for (int64_t i = 1; i < steps; ++i) {
      for (size_t k = 0; k < before; ++k) {
        places.push_back(places[k] + i * step);
      }
    }
  }
  for (const int64_t place : places) {
    if (is_taken[place]) return true;
    is_taken[place] = true;
  }
  return false;
}

inline at::Tensor Contiguous(const at::Tensor& self,
                             at::MemoryFormat memory_format) {
  const std::optional<at::Tensor> strided = WithStrides(self);
  return !strided || strided->is_contiguous(memory_format)
             ? at::native::contiguous(self, memory_format)
             : at::clone(self, memory_format);
}

// PyTorch's function steps through the signal by its strides.
inline at::Tensor Stft(const at::Tensor& self, int64_t n_fft,
                       std::optional<int64_t> hop_length,
                       std::optional<int64_t> win_length,
                       const std::optional<at::Tensor>& window, bool normalized,
                       std::optional<bool> onesided,
                       std::optional<bool> return_complex,
                       std::optional<bool> align_to_window) {
  return at::native::stft(Contiguous(self, at::MemoryFormat::Contiguous), n_fft,
                          hop_length, win_length, window, normalized, onesided,
                          return_complex, align_to_window);
}

// at::ravel relies on PyTorch's contiguous(), which does not know strides here.
inline at::Tensor Ravel(const at::Tensor& self) {
  return Contiguous(self, at::MemoryFormat::Contiguous).view(-1);
}

// Whether reshape() makes a copy in PyTorch.
inline bool IsReshapedByCopy(const at::Tensor& self, at::IntArrayRef shape) {
  const std::optional<at::Tensor> strided = WithStrides(self);
  return strided && !strided->is_contiguous() &&
         !at::detail::computeStride(strided->sizes(), strided->strides(),
                                    at::infer_size_dv(shape, self.numel()));
}

inline at::Tensor Reshape(const at::Tensor& self, at::SymIntArrayRef shape) {
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);
  const bool copies = sizes && IsReshapedByCopy(self, *sizes);
  return at::native::reshape_symint(copies ? at::clone(self) : self, shape);
}

inline at::Tensor Flatten(const at::Tensor& self, int64_t start, int64_t end) {
  const int64_t dim = at::maybe_wrap_dim(start, self.dim());
  const int64_t last = at::maybe_wrap_dim(end, self.dim());
  bool copies = false;
  if (dim < last && !self.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    std::vector<int64_t> shape = self.sizes().vec();
    for (int64_t i = dim + 1; i <= last; ++i) shape[dim] *= shape[i];
    shape.erase(shape.begin() + dim + 1, shape.begin() + last + 1);
    copies = IsReshapedByCopy(self, shape);
  }
  return at::native::flatten(copies ? at::clone(self) : self, start, end);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_STRIDES_H_
