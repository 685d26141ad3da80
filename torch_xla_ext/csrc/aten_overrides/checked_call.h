// Kernels that check a call before the operator's XLA kernel traces it, with
// PyTorch's meta functions or with functions that receive the same arguments.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CHECKED_CALL_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CHECKED_CALL_H_

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch_xla_ext::aten_overrides {

constexpr std::string_view kNamespace = "aten::";

// PyTorch's own operators.
inline std::vector<c10::OperatorHandle> AtenOperators() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> operators;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind(kNamespace, 0) != 0) continue;
    if (const auto op = dispatcher.findSchema(name)) operators.push_back(*op);
  }
  return operators;
}

// An operator's name without its namespace and overload.
inline std::string_view NameOf(const c10::OperatorHandle& op) {
  return std::string_view(op.operator_name().name).substr(kNamespace.size());
}

// The set of the words of a text, which spaces separate.
inline std::unordered_set<std::string_view> Words(std::string_view text) {
  std::unordered_set<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.insert(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// Whether the sizes of an argument are known.
inline bool IsToBeChecked(const at::Tensor& tensor) {
  return !tensor.defined() ||
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}
inline bool IsToBeChecked(const std::optional<at::Tensor>& tensor) {
  return !tensor || IsToBeChecked(*tensor);
}
inline bool IsToBeChecked(const at::ITensorListRef& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!IsToBeChecked(tensor)) return false;
  }
  return true;
}
template <typename Other>
bool IsToBeChecked(const Other&) {
  return true;
}

// A meta tensor that describes the argument.
inline at::Tensor Described(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor meta =
      at::detail::empty_meta(tensor.sizes(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}
inline at::Tensor& Described(at::Tensor& tensor) { return tensor; }
inline std::optional<at::Tensor> Described(
    const std::optional<at::Tensor>& tensor) {
  if (!tensor) return std::nullopt;
  return Described(*tensor);
}
struct DescribedList {
  std::vector<at::Tensor> tensors;
  operator at::ITensorListRef() const { return at::TensorList(tensors); }
};
inline DescribedList Described(const at::ITensorListRef& tensors) {
  DescribedList list;
  for (const at::Tensor& tensor : tensors) {
    list.tensors.push_back(Described(tensor));
  }
  return list;
}
template <typename Other>
const Other& Described(const Other& other) {
  return other;
}

// Whether a tensor is a functionalized one of XLA whose sizes are known, and
// not one of torch.compile's, whose own checks are PyTorch's.
inline bool IsChecked(const at::Tensor& tensor) {
  namespace functionalization = at::functionalization::impl;
  if (!tensor.defined() || !tensor.is_xla() || !IsToBeChecked(tensor) ||
      !functionalization::isFunctionalTensor(tensor)) {
    return false;
  }
  return !functionalization::unsafeGetFunctionalWrapper(tensor)
              ->value()
              .key_set()
              .has(c10::DispatchKey::Python);
}

// Calls that are neither functionalized nor seen by a mode of Python, such as
// torch.compile's, which would get tensors that it does not know.
struct OutsideOfModes {
  const at::AutoDispatchSkipFunctionalize no_functionalization;
  const c10::impl::ExcludeDispatchKeyGuard no_modes{c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PreDispatch,
       c10::DispatchKey::PythonTLSSnapshot})};
};

// Names a private member, as an explicit instantiation may, so that a kernel
// can call the one that it replaces.
template <auto kMember>
struct MemberOfOperator {
  friend c10::KernelFunction KernelOf(const c10::OperatorHandle& op,
                                      c10::DispatchKey key) {
    return (op.*kMember)->op.lookup(c10::DispatchKeySet(key));
  }
};
c10::KernelFunction KernelOf(const c10::OperatorHandle& op,
                             c10::DispatchKey key);
template struct MemberOfOperator<&c10::OperatorHandle::operatorDef_>;

// The kernel for `kKey`, XLA tensors, of an operator `Op`, such as
// at::_ops::add_Tensor, that was registered before `Caller`, which calls it: an
// operator may have several callers, each of which calls the one before.
template <typename Op, typename Caller,
          c10::DispatchKey kKey = c10::DispatchKey::XLA>
struct RegisteredKernel {
  c10::OperatorHandle op;
  c10::KernelFunction kernel;

  static const RegisteredKernel& Get() {
    static const auto* const registered = [] {
      const c10::OperatorHandle op =
          c10::Dispatcher::singleton().findSchemaOrThrow(Op::name,
                                                         Op::overload_name);
      return new RegisteredKernel{op, KernelOf(op, kKey)};
    }();
    return *registered;
  }

  template <typename Result, typename... Args>
  static Result Call(c10::DispatchKeySet keys, Args... args) {
    const RegisteredKernel& registered = Get();
    return registered.kernel.template call<Result, Args...>(
        registered.op, keys, std::forward<Args>(args)...);
  }

  // Registers the caller's `function` in place of the kernel.
  template <typename Function>
  static void Replace(torch::Library& m, const Function& function) {
    Get();
    const c10::OperatorName name(Op::name, Op::overload_name);
    m.impl(c10::toString(name).c_str(), function);
  }
};

// Calls a check with the first arguments, as many as it has parameters. If its
// first parameter is a `const char*`, it receives the operator's name.
template <typename Result, typename... Params, typename Args, size_t... kIndex>
void Check(Result (*check)(Params...), const char*, Args&& args,
           std::index_sequence<kIndex...>) {
  check(std::get<kIndex>(std::forward<Args>(args))...);
}
template <typename Result, typename... Params, typename Args, size_t... kIndex>
void Check(Result (*check)(const char*, Params...), const char* name,
           Args&& args, std::index_sequence<0, kIndex...>) {
  check(name, std::get<kIndex - 1>(std::forward<Args>(args))...);
}
template <typename Result, typename... Params, typename... Args>
void CheckWithFirst(Result (*check)(Params...), const char* name,
                    Args&&... args) {
  Check(check, name, std::forward_as_tuple(std::forward<Args>(args)...),
        std::index_sequence_for<Params...>());
}

// The kernel of an operator `Op` that calls `kCheck` before the registered one.
template <typename Op, auto kCheck,
          c10::DispatchKey kKey = c10::DispatchKey::XLA,
          typename Schema = typename Op::schema>
struct CheckedCall;

template <typename Op, auto kCheck, c10::DispatchKey kKey, typename Result,
          typename... Args>
struct CheckedCall<Op, kCheck, kKey, Result(Args...)> {
  static Result Call(c10::DispatchKeySet keys, Args... args) {
    if ((IsToBeChecked(args) && ...)) {
      CheckWithFirst(kCheck, Op::name + kNamespace.size(), Described(args)...);
    }
    return RegisteredKernel<Op, CheckedCall, kKey>::template Call<Result,
                                                                  Args...>(
        keys, std::forward<Args>(args)...);
  }

  static void Register(torch::Library& m) {
    RegisteredKernel<Op, CheckedCall, kKey>::Replace(m, TORCH_FN(Call));
  }
};

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CHECKED_CALL_H_
