#include "torch_xla_ext/csrc/custom_call/dispatcher_kernels.h"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/call_key.h"
#include "torch_xla_ext/csrc/custom_call/prepared_call.h"
#include "torch_xla_ext/csrc/registry/registration.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

using Arguments = c10::ArrayRef<c10::IValue>;

// The number of open debug.use_reference blocks, in all threads. While there is
// one, Python decides whether a reference computes a call.
std::atomic<int> num_reference_blocks{0};

}  // namespace

// A Python function. It is never freed: the dispatcher may outlive Python.
class PythonFunction {
 public:
  explicit PythonFunction(py::object function)
      : function_(function.release().ptr()) {}

  // Calls the function with an operator's arguments. The GIL must be held. An
  // exception propagates through the dispatcher, as from torch's own Python
  // kernels.
  py::object operator()(Arguments args) const {
    py::tuple values(args.size());
    for (size_t i = 0; i < args.size(); ++i) {
      values[i] = torch::jit::toPyObject(args[i]);
    }
    PyObject* result = PyObject_Call(function_, values.ptr(), nullptr);
    if (result == nullptr) {
      python_error error;
      error.persist();
      throw error;
    }
    return py::reinterpret_steal<py::object>(result);
  }

 private:
  PyObject* function_;
};

namespace {

// Appends the key of an argument: a tensor's dtype, shape and device, and the
// type and value of anything else. Returns false for arguments that are not
// cached.
bool AppendKey(const c10::IValue& value, std::string* key) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      key->push_back('n');
      return true;
    }
    if (!AppendTensor(tensor, key)) return false;
  } else if (value.isNone()) {
    key->push_back('n');
  } else if (value.isBool()) {
    key->push_back('b');
    AppendBytes(value.toBool(), key);
  } else if (value.isInt()) {
    key->push_back('i');
    AppendBytes(value.toInt(), key);
  } else if (value.isDouble()) {
    key->push_back('d');
    AppendBytes(value.toDouble(), key);  // distinguishes -0.0 and 0.0
  } else if (value.isString()) {
    key->push_back('s');
    AppendText(value.toStringRef(), key);
  } else {
    return false;
  }
  return true;
}

bool IsTensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

}  // namespace

// The prepared calls of one operator.
class PreparedCalls {
 public:
  PreparedCalls(py::object prepare, py::object run,
                std::optional<std::vector<std::string>> environment)
      : prepare_(std::move(prepare)),
        run_(std::move(run)),
        environment_(std::move(environment)) {}

  // Returns all results of the kernel, of which the operator returns the first
  // ones.
  std::vector<at::Tensor> Call(Arguments args) {
    // Read before any lookup, so that a registration in the meantime makes the
    // entry stale.
    const uint64_t registrations = NumRegistrations();
    std::string key;
    const bool is_cacheable = AppendKeys(args, &key);
    std::shared_ptr<const PreparedCall> call;
    if (is_cacheable) call = Find(key, registrations);
    if (call == nullptr) {
      const py::gil_scoped_acquire gil;
      const py::object prepared = prepare_(args);
      if (prepared.is_none()) return ToTensors(run_(args));
      call = prepared.cast<std::shared_ptr<PreparedCall>>();
      if (is_cacheable) Insert(std::move(key), registrations, call);
    }
    std::vector<torch_xla::XLATensorPtr> inputs;
    inputs.reserve(args.size());
    for (const c10::IValue& value : args) {
      if (!IsTensor(value)) continue;
      inputs.push_back(torch_xla::bridge::TryGetXlaTensor(value.toTensor()));
      TORCH_INTERNAL_ASSERT(inputs.back());
    }
    std::optional<py::gil_scoped_release> without_gil;
    if (PyGILState_Check()) without_gil.emplace();
    return call->Trace(inputs);
  }

 private:
  struct Entry {
    uint64_t registrations;
    std::shared_ptr<const PreparedCall> call;
  };
  // If sizes never repeat, caching more entries gains nothing.
  static constexpr size_t kMaxEntries = 4096;

  bool AppendKeys(Arguments args, std::string* key) const {
    if (!environment_ || num_reference_blocks != 0) return false;
    key->reserve(64 * args.size());
    // A call in a program for several devices has a different key.
    AppendBytes(torch_xla::UseVirtualDevice(/*force_spmd=*/false), key);
    for (const c10::IValue& value : args) {
      if (!AppendKey(value, key)) return false;
    }
    for (const std::string& name : *environment_) {
      const char* value = std::getenv(name.c_str());
      key->push_back(value == nullptr ? 'n' : 's');
      if (value != nullptr) key->append(value).push_back('\0');
    }
    return true;
  }

  std::shared_ptr<const PreparedCall> Find(const std::string& key,
                                           uint64_t registrations) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    return found->second.registrations == registrations ? found->second.call
                                                        : nullptr;
  }

  void Insert(std::string key, uint64_t registrations,
              std::shared_ptr<const PreparedCall> call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (entries_.size() >= kMaxEntries) entries_.clear();
    entries_.insert_or_assign(std::move(key),
                              Entry{registrations, std::move(call)});
  }

  static std::vector<at::Tensor> ToTensors(const py::object& results) {
    if (!py::isinstance<py::tuple>(results)) {
      return {results.cast<at::Tensor>()};
    }
    return results.cast<std::vector<at::Tensor>>();
  }

  const PythonFunction prepare_;
  const PythonFunction run_;
  // Empty if nothing is cached.
  const std::optional<std::vector<std::string>> environment_;
  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
};

namespace {

// The kernel for the dispatch key XLA.
class XlaKernel : public c10::OperatorKernel {
 public:
  explicit XlaKernel(std::shared_ptr<PreparedCalls> calls)
      : calls_(std::move(calls)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    const size_t num_arguments = op.schema().arguments().size();
    std::vector<at::Tensor> results =
        calls_->Call(torch::jit::last(*stack, num_arguments));
    const size_t num_returns = op.schema().returns().size();
    TORCH_INTERNAL_ASSERT(results.size() >= num_returns);
    torch::jit::drop(*stack, num_arguments);
    for (size_t i = 0; i < num_returns; ++i) {
      stack->emplace_back(std::move(results[i]));
    }
  }

 private:
  const std::shared_ptr<PreparedCalls> calls_;
};

bool IsDifferentiated(const c10::IValue& value) {
  if (!IsTensor(value)) return false;
  const at::Tensor& tensor = value.toTensor();
  if (c10::GradMode::is_enabled() && tensor.requires_grad()) return true;
  return c10::AutogradState::get_tls_state().get_fw_grad_mode() &&
         tensor._fw_grad(/*level=*/0).defined();
}

// The kernel for the dispatch key Autograd: calls that need no gradient do not
// enter Python.
class AutogradKernel : public c10::OperatorKernel {
 public:
  AutogradKernel(py::object differentiate, std::vector<size_t> written)
      : differentiate_(std::move(differentiate)),
        written_(std::move(written)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    const size_t num_arguments = op.schema().arguments().size();
    const Arguments args = torch::jit::last(*stack, num_arguments);
    for (const c10::IValue& value : args) {
      if (IsDifferentiated(value)) {
        return CallPython(op, args, stack);
      }
    }
    std::vector<at::Tensor> written;
    for (const size_t i : written_) written.push_back(args[i].toTensor());
    {
      const at::AutoDispatchBelowAutograd guard;
      op.callBoxed(stack);
    }
    // The call overwrites values that autograd may have saved. Bumping the
    // version makes backward() report this.
    for (const at::Tensor& tensor : written) {
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }

 private:
  void CallPython(const c10::OperatorHandle& op, Arguments args,
                  torch::jit::Stack* stack) const {
    const py::gil_scoped_acquire gil;
    const py::object result = differentiate_(args);
    torch::jit::drop(*stack, args.size());
    const auto& returns = op.schema().returns();
    if (returns.size() == 1) {
      stack->push_back(torch::jit::toIValue(result, returns[0].type()));
      return;
    }
    for (size_t i = 0; i < returns.size(); ++i) {
      stack->push_back(torch::jit::toIValue(
          py::reinterpret_borrow<py::tuple>(result)[i], returns[i].type()));
    }
  }

  const PythonFunction differentiate_;
  const std::vector<size_t> written_;
};

// The kernel for the dispatch key Functionalize of an operator that writes to
// its arguments `written`, which receive the results of `calls`, the operator's
// functional form. Does the same as the code that torch generates for its own
// in-place operators.
class InPlaceKernel : public c10::OperatorKernel {
 public:
  InPlaceKernel(std::shared_ptr<PreparedCalls> calls, py::object run,
                std::vector<size_t> written)
      : calls_(std::move(calls)),
        run_(std::move(run)),
        written_(std::move(written)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    namespace functionalization = at::functionalization::impl;
    const size_t num_arguments = op.schema().arguments().size();
    const Arguments args = torch::jit::last(*stack, num_arguments);
    if (!TakesPython(args)) {
      std::vector<c10::IValue> inner(args.begin(), args.end());
      for (c10::IValue& value : inner) {
        if (!IsTensor(value)) continue;
        const at::Tensor& tensor = value.toTensor();
        functionalization::sync(tensor);
        value = functionalization::from_functional_tensor(tensor);
      }
      std::vector<at::Tensor> results;
      {
        const at::AutoDispatchSkipFunctionalize guard;
        results = calls_->Call(inner);
      }
      for (size_t i = 0; i < written_.size(); ++i) {
        const at::Tensor& tensor = args[written_[i]].toTensor();
        // Sets the buffer that torch_xla donates.
        functionalization::propagate_xla_data_direct(
            inner[written_[i]].toTensor(), results[i]);
        functionalization::replace_(tensor, results[i]);
        functionalization::commit_update(tensor);
        functionalization::sync(tensor);
      }
    } else {
      const py::gil_scoped_acquire gil;
      run_(args);
    }
    torch::jit::drop(*stack, num_arguments);
  }

 private:
  // Whether Python must handle the call: if there are tensors other than XLA's,
  // or if a tensor is written to twice, which is an error that Python raises.
  bool TakesPython(Arguments args) const {
    for (const c10::IValue& value : args) {
      if (!IsTensor(value)) continue;
      const at::Tensor& tensor = value.toTensor();
      if (tensor.device().type() != c10::kXLA ||
          tensor.key_set().has(c10::DispatchKey::Python) ||
          !at::functionalization::impl::isFunctionalTensor(tensor)) {
        return true;
      }
      const at::Tensor inner =
          at::functionalization::impl::from_functional_tensor(tensor);
      if (inner.key_set().has(c10::DispatchKey::Python)) return true;
    }
    for (size_t i = 0; i < written_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (args[written_[i]].toTensor().is_same(
                args[written_[j]].toTensor())) {
          return true;
        }
      }
    }
    return false;
  }

  const std::shared_ptr<PreparedCalls> calls_;
  const PythonFunction run_;
  const std::vector<size_t> written_;
};

template <typename Kernel>
c10::RegistrationHandleRAII Register(const std::string& name,
                                     const std::string& overload,
                                     c10::DispatchKey key,
                                     std::unique_ptr<Kernel> kernel) {
  return c10::Dispatcher::singleton().registerImpl(
      c10::OperatorName(name, overload), key,
      c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)),
      std::nullopt, nullptr, "torch_xla_ext");
}

}  // namespace

DispatcherKernel RegisterXlaKernel(
    const std::string& name, const std::string& overload, py::object prepare,
    py::object run, std::optional<std::vector<std::string>> environment) {
  auto calls = std::make_shared<PreparedCalls>(
      std::move(prepare), std::move(run), std::move(environment));
  return {Register(name, overload, c10::DispatchKey::XLA,
                   std::make_unique<XlaKernel>(calls)),
          calls};
}

DispatcherKernel RegisterAutogradKernel(const std::string& name,
                                        const std::string& overload,
                                        py::object differentiate,
                                        std::vector<size_t> written) {
  return {Register(name, overload, c10::DispatchKey::Autograd,
                   std::make_unique<AutogradKernel>(std::move(differentiate),
                                                    std::move(written))),
          nullptr};
}

DispatcherKernel RegisterInPlaceKernel(const std::string& name,
                                       const std::string& overload,
                                       const DispatcherKernel& functional,
                                       py::object run,
                                       std::vector<size_t> written) {
  TORCH_CHECK_VALUE(functional.calls != nullptr,
                    "not the registration of an operator's calls");
  return {Register(name, overload, c10::DispatchKey::Functionalize,
                   std::make_unique<InPlaceKernel>(
                       functional.calls, std::move(run), std::move(written))),
          nullptr};
}

void AddReferenceBlocks(int count) { num_reference_blocks += count; }

}  // namespace torch_xla_ext
