// Copies, and the parts of complex numbers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COPIES_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COPIES_H_

#include <torch/csrc/lazy/backend/backend_interface.h>

#include <atomic>
#include <optional>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/float8.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"
#include "torch_xla_ext/csrc/runtime_fixes/unbounded_graph.h"

namespace torch_xla_ext::aten_overrides {

// Whether the upstream kernels would drop imaginary parts when they copy `self`
// to the host.
inline bool LosesParts(const at::Tensor& self) {
  return self.device().type() == at::kXLA &&
         self.scalar_type() == at::kComplexDouble;
}

// The host's copy of `self`.
inline at::Tensor BothParts(const at::Tensor& self) {
  return at::view_as_complex(at::view_as_real_copy(self).cpu());
}

// The values of `self` on the host, if they are computed; nothing if they are
// pending, or if a program that is being started may receive their buffer. The
// upstream kernels wait until all programs have been started.
inline std::optional<at::Tensor> ComputedValues(const at::Tensor& self) {
  ComputePendingValues(self);
  if (torch_xla::UseVirtualDevice(/*force_spmd=*/false)) return std::nullopt;
  const auto tensor = torch_xla::bridge::TryGetXlaTensor(self);
  if (tensor == nullptr) return std::nullopt;
  torch::lazy::BackendDataPtr handle;
  {
    const TensorLock lock;
    const auto& data = tensor->torch::lazy::LazyTensor::data();
    // A program that is being started refers to its operands and results.
    if (data->handle.use_count() != 1) return std::nullopt;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (data->ir_value || data->tensor_data || !data->handle->HasValue()) {
      return std::nullopt;
    }
    handle = data->handle;
  }
  return torch::lazy::getBackend()->MakeTensorFromComputationData(
      handle, self.scalar_type());
}

// The host's copies of the operands of an operator that runs on the CPU.
inline std::vector<at::Tensor> ToCpu(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) ComputePendingValues(tensor);
  std::vector<at::Tensor> result = Upstream::_to_cpu(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (LosesParts(tensors[i])) result[i] = BothParts(tensors[i]);
  }
  return result;
}

// `self`, rounded to values that the conversion to `type` keeps. The upstream
// conversion of complex numbers to booleans looks at the real parts alone.
inline at::Tensor RoundedFor(at::ScalarType type, const at::Tensor& self) {
  if (type == at::kBool && self.is_complex() && self.device().is_xla()) {
    return at::ne(self, 0);
  }
  const Float8Format* const format = Float8FormatOf(type);
  if (format == nullptr || self.scalar_type() == type || self.is_complex() ||
      !self.device().is_xla()) {
    return self;
  }
  return RoundedToFloat8(self, *format);
}

inline at::Tensor CopyFrom(const at::Tensor& self, const at::Tensor& dst,
                           bool non_blocking) {
  if (LosesParts(self) && dst.device().is_cpu()) {
    at::Tensor result = dst;
    return result.copy_(BothParts(self));
  }
  if (self.device().is_xla() && dst.device().is_cpu()) {
    if (const auto values = ComputedValues(self)) {
      at::Tensor result = dst;
      return result.copy_(*values);
    }
  }
  at::Tensor source = RoundedFor(dst.scalar_type(), self);
  // The upstream kernel gives `dst` the sharding of `self`, which is invalid
  // for a tensor with more dimensions. An expanded copy has none.
  if (self.device().is_xla() && dst.device().is_xla() &&
      self.dim() != dst.dim()) {
    source = at::expand_copy(source, dst.sizes());
  }
  return Upstream::_copy_from(source, dst, non_blocking);
}

inline at::Tensor& Copy_(at::Tensor& self, const at::Tensor& src,
                         bool non_blocking) {
  CopyFrom(src, self, non_blocking);
  return self;
}

// The functional form of copy_, which a torch.compile graph contains in its
// place, leaves its first argument unchanged. The upstream kernel writes to it,
// so that a later read of it would see the new value.
inline at::Tensor Copy(const at::Tensor& self, const at::Tensor& src,
                       bool non_blocking) {
  return CopyFrom(src, at::empty_like(self), non_blocking);
}

inline at::Scalar LocalScalarDense(const at::Tensor& self) {
  ComputePendingValues(self);
  return LosesParts(self) ? BothParts(self).item()
                          : Upstream::_local_scalar_dense(self);
}

inline at::Tensor ToCopy(const at::Tensor& self,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout,
                         std::optional<at::Device> device,
                         std::optional<bool> pin_memory, bool non_blocking,
                         std::optional<at::MemoryFormat> memory_format) {
  if (LosesParts(self) && device.has_value() && device->is_cpu()) {
    return BothParts(self).to(dtype.value_or(at::kComplexDouble));
  }
  if (self.device().is_xla() && device.has_value() && device->is_cpu() &&
      layout.value_or(at::kStrided) == at::kStrided &&
      !pin_memory.value_or(false)) {
    if (const auto values = ComputedValues(self)) {
      return values->to(dtype.value_or(values->scalar_type()),
                        /*non_blocking=*/false, /*copy=*/false, memory_format);
    }
  }
  return Upstream::_to_copy(
      RoundedFor(dtype.value_or(self.scalar_type()), self), dtype, layout,
      device, pin_memory, non_blocking, memory_format);
}

// The layout of the upstream kernel's result lacks a dimension: transposing it
// crashes the process.
inline at::Tensor ViewAsRealCopy(const at::Tensor& self) {
  const at::Tensor result = Upstream::view_as_real_copy(self);
  return at::view_copy(result, result.sizes());
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COPIES_H_
