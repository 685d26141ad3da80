#include "torch_xla_ext/csrc/runtime_fixes/python_dispatch.h"

#include <ATen/core/PythonFallbackKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/library.h>

#include <string>

namespace torch_xla_ext {
namespace {

constexpr c10::DispatchKey kBeforePython = c10::DispatchKey::PythonTLSSnapshot;

// Calls that dispatch to Python, for a mode or a subclass, first enter here.
// This works as in PyTorch, except that functionalization is left to the
// operators that Python calls. An operator that calls others, such as linear(),
// does so with
// functionalization: if those dispatch to Python, too, they enter here again.
void EnterPython(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const at::impl::MaybeSetTLSOnEntryGuard guard;
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBeforePython)
                 .remove(c10::DispatchKey::Functionalize),
      stack);
}

#define TORCH_XLA_EXT_OF_TENSOR(Result, name)               \
  Result name(const c10::TensorImpl* self) const override { \
    return torch_.name(self);                               \
  }
#define TORCH_XLA_EXT_TRACE(name)                                              \
  void trace_gpu_##name(c10::DeviceType type, uintptr_t what) const override { \
    torch_.trace_gpu_##name(type, what);                                       \
  }

// PyTorch's own functions, with functionalization for the innermost Python
// code.
class Functionalizing final : public c10::impl::PyInterpreterVTable {
 public:
  explicit Functionalizing(const c10::impl::PyInterpreterVTable* torch)
      : torch_(*torch) {}

  void dispatch(const c10::OperatorHandle& op,
                torch::jit::Stack* stack) const override {
    const c10::impl::LocalDispatchKeySet now =
        c10::impl::tls_local_dispatch_key_set();
    // PyTorch's own functionalization, such as AOTAutograd's, includes the key.
    if (c10::impl::TorchDispatchModeTLS::stack_len() > 1 ||
        now.included_.has(c10::DispatchKey::Functionalize)) {
      return torch_.dispatch(op, stack);
    }
    // With this entry, too: Python's calls may dispatch to Python again, as in
    // FlopCounterMode, which decomposes operators within itself.
    c10::impl::PODLocalDispatchKeySet keys;
    keys.set_included(now.included_);
    keys.set_excluded(now.excluded_.remove(c10::DispatchKey::Functionalize)
                          .remove(kBeforePython));
    const c10::impl::ForceDispatchKeyGuard guard(keys);
    torch_.dispatch(op, stack);
  }

  std::string name() const override { return torch_.name(); }
  void incref(PyObject* object) const override { torch_.incref(object); }
  void decref(PyObject* object, bool has_slot) const override {
    torch_.decref(object, has_slot);
  }
  TORCH_XLA_EXT_OF_TENSOR(c10::intrusive_ptr<c10::TensorImpl>, detach)
  void reportErrorCallback(PyObject* callback,
                           c10::DispatchKey key) const override {
    torch_.reportErrorCallback(callback, key);
  }
  void python_op_registration_trampoline(const c10::OperatorHandle& op,
                                         c10::DispatchKey key,
                                         c10::DispatchKeySet keyset,
                                         torch::jit::Stack* stack,
                                         bool with_keyset,
                                         bool with_op) const override {
    torch_.python_op_registration_trampoline(op, key, keyset, stack,
                                             with_keyset, with_op);
  }
  void throw_abstract_impl_not_imported_error(
      std::string opname, const char* pymodule,
      const char* context) const override {
    torch_.throw_abstract_impl_not_imported_error(std::move(opname), pymodule,
                                                  context);
  }
  void python_dispatcher(const c10::OperatorHandle& op,
                         c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) const override {
    torch_.python_dispatcher(op, keys, stack);
  }

  bool is_contiguous(const c10::TensorImpl* self,
                     at::MemoryFormat format) const override {
    return torch_.is_contiguous(self, format);
  }
  bool is_strides_like(const c10::TensorImpl* self,
                       at::MemoryFormat format) const override {
    return torch_.is_strides_like(self, format);
  }
  TORCH_XLA_EXT_OF_TENSOR(bool, is_non_overlapping_and_dense)
  TORCH_XLA_EXT_OF_TENSOR(c10::Device, device)
  TORCH_XLA_EXT_OF_TENSOR(int64_t, dim)
  TORCH_XLA_EXT_OF_TENSOR(c10::IntArrayRef, strides)
  TORCH_XLA_EXT_OF_TENSOR(c10::IntArrayRef, sizes)
  TORCH_XLA_EXT_OF_TENSOR(c10::SymIntArrayRef, sym_sizes)
  TORCH_XLA_EXT_OF_TENSOR(c10::Layout, layout)
  TORCH_XLA_EXT_OF_TENSOR(int64_t, numel)
  TORCH_XLA_EXT_OF_TENSOR(c10::SymInt, sym_numel)
  TORCH_XLA_EXT_OF_TENSOR(c10::SymIntArrayRef, sym_strides)
  TORCH_XLA_EXT_OF_TENSOR(c10::SymInt, sym_storage_offset)

  TORCH_XLA_EXT_TRACE(event_creation)
  TORCH_XLA_EXT_TRACE(event_deletion)
  void trace_gpu_event_record(c10::DeviceType type, uintptr_t event,
                              uintptr_t stream) const override {
    torch_.trace_gpu_event_record(type, event, stream);
  }
  void trace_gpu_event_wait(c10::DeviceType type, uintptr_t event,
                            uintptr_t stream) const override {
    torch_.trace_gpu_event_wait(type, event, stream);
  }
  TORCH_XLA_EXT_TRACE(memory_allocation)
  TORCH_XLA_EXT_TRACE(memory_deallocation)
  TORCH_XLA_EXT_TRACE(stream_creation)
  void trace_gpu_device_synchronization(c10::DeviceType type) const override {
    torch_.trace_gpu_device_synchronization(type);
  }
  TORCH_XLA_EXT_TRACE(stream_synchronization)
  TORCH_XLA_EXT_TRACE(event_synchronization)
  TORCH_XLA_EXT_OF_TENSOR(void, reset_backward_hooks)

 private:
  const c10::impl::PyInterpreterVTable& torch_;
};

#undef TORCH_XLA_EXT_OF_TENSOR
#undef TORCH_XLA_EXT_TRACE

// Names a private member, as an explicit instantiation may. The dispatcher has
// no public way to replace a fallback that PyTorch has registered.
template <auto kMember>
struct MemberOfDispatcher {
  friend void RemoveFallback(c10::Dispatcher& dispatcher,
                             c10::DispatchKey key) {
    (dispatcher.*kMember)(key);
  }
};
void RemoveFallback(c10::Dispatcher& dispatcher, c10::DispatchKey key);
template struct MemberOfDispatcher<&c10::Dispatcher::deregisterFallback_>;

}  // namespace

void FunctionalizeAfterPython() {
  RemoveFallback(c10::Dispatcher::singleton(), kBeforePython);
  // Never destroyed: torch's registry may be gone before.
  auto* const library = new torch::Library(torch::Library::IMPL, "_",
                                           kBeforePython, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&EnterPython>());
  c10::impl::PyInterpreter* const interpreter = getPyInterpreter();
  interpreter->vtable_ = new Functionalizing(interpreter->vtable_);
}

}  // namespace torch_xla_ext
