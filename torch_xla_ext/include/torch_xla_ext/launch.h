// Calls a launch function with the views and parameters of one call. For
// kernel.h; authors do not need it.
#ifndef TORCH_XLA_EXT_LAUNCH_H_
#define TORCH_XLA_EXT_LAUNCH_H_

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_xla_ext/buffer.h"
#include "torch_xla_ext/check.h"
#include "torch_xla_ext/params.h"
#include "torch_xla_ext/signature.h"
#include "torch_xla_ext/status.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {
namespace internal {

// Makes an argument of a launch function.
template <typename T>
struct IsView : std::false_type {};
template <bool kMutable>
struct IsView<AnyView<kMutable>> : std::true_type {
  static constexpr bool kIsResult = kMutable, kIsOptional = false;
  static constexpr DType kDType = DType::kAbsent;
  static constexpr int kRank = kAnyRank;
};
template <bool kMutable, DType kElement, int kStaticRank>
struct IsView<TypedView<kMutable, kElement, kStaticRank>> : std::true_type {
  static constexpr bool kIsResult = kMutable, kIsOptional = false;
  static constexpr DType kDType = kElement;
  static constexpr int kRank = kStaticRank;
};
template <typename T>
struct IsView<std::optional<T>> : IsView<T> {
  static constexpr bool kIsOptional = true;
};

template <typename... Ts>
struct TypeList {};

template <typename Last, typename... Rest>
struct LastType : LastType<Rest...> {};
template <typename Last>
struct LastType<Last> {
  using Type = Last;
};

// The types of a launch function: `Status(Stream, views..., const Params&)`,
// with the stream on CUDA and the parameters if the kernel has any.
template <bool kHasStream, typename Function>
struct LaunchTraits;
template <typename... Args>
struct LaunchTraits</*kHasStream=*/false, Status (*)(Args...)> {
  using Last = std::decay_t<typename LastType<void, Args...>::Type>;
  static constexpr bool kHasParams = !IsView<Last>::value;
  using Params = std::conditional_t<kHasParams, Last, NoParams>;
  static constexpr size_t kNumViews = sizeof...(Args) - (kHasParams ? 1 : 0);
  template <size_t kIndex>
  using View = std::decay_t<std::tuple_element_t<kIndex, std::tuple<Args...>>>;
};
template <typename Stream, typename... Args>
struct LaunchTraits</*kHasStream=*/true, Status (*)(Stream, Args...)>
    : LaunchTraits</*kHasStream=*/false, Status (*)(Args...)> {};

template <typename View>
View MakeView(const BufferView& view) {
  if constexpr (IsView<View>::kIsOptional) {
    if (view.dtype == DType::kAbsent) return std::nullopt;
    return typename View::value_type(view);
  } else {
    return View(view);
  }
}

// The view of an argument, with its layout.
template <typename View>
View ViewOf(BufferView view, const Argument& argument) {
  if (argument.layout_size > 0) view.layout = argument.layout;
  return MakeView<View>(view);
}

template <const Signature& kSignature, typename View, size_t kIndex>
constexpr void CheckViewType() {
  constexpr const Argument& kArgument = kSignature.arguments[kIndex];
  using Is = IsView<View>;
  static_assert(Is::value,
                "a launch function takes AnyBuffer, Buffer, "
                "AnyResult, Result, or std::optional of an operand");
  static_assert(Is::kIsResult == (kIndex >= kSignature.num_operands),
                "operands are taken as AnyBuffer or Buffer, results as "
                "AnyResult or Result, in the signature's order");
  static_assert(Is::kIsOptional == kArgument.optional,
                "std::optional is for the operands with a question mark");
  static_assert(Is::kDType == DType::kAbsent || Is::kDType == kArgument.dtype,
                "a view's dtype is not the signature's");
  static_assert(Is::kRank == kAnyRank ||
                    (kArgument.star < 0 && Is::kRank == kArgument.num_dims),
                "a view's rank is not the signature's");
}

// Whether the environment turns on a log line for each launch.
inline bool LogsLaunches() {
  static const bool logs = [] {
    const char* value = std::getenv("TORCH_XLA_EXT_LOG_LAUNCHES");
    return value != nullptr && *value != '\0' && std::string(value) != "0";
  }();
  return logs;
}

inline void LogLaunch(const Signature& signature, const char* entry,
                      const BufferView* views, double microseconds,
                      const Status& status) {
  std::string line =
      "[torch_xla_ext] " + std::string(signature.target) + " " + entry + " (";
  for (int i = 0; i < signature.num_arguments(); ++i) {
    if (i == signature.num_operands) {
      line += ") -> (";
    } else if (i > 0) {
      line += ", ";
    }
    line.append(signature.arguments[i].name).append(": ");
    line += views[i].dtype == DType::kAbsent
                ? "absent"
                : DTypeName(views[i].dtype) +
                      DimsText(views[i].dims, views[i].rank);
  }
  char time[32];
  std::snprintf(time, sizeof(time), ") %.1f us", microseconds);
  line += time;
  if (!status.ok()) line += ": " + status.message();
  line += '\n';
  std::fputs(line.c_str(), stderr);  // in one call: launches may be concurrent
}

// Calls kLaunch. `views` are checked already; `stream` is empty on the Host.
template <const Signature& kSignature, auto kLaunch, size_t... kIndices,
          typename Params, typename... Stream>
Status CallLaunch(std::index_sequence<kIndices...>, const BufferView* views,
                  const Params& params, Stream... stream) {
  using Traits = LaunchTraits<sizeof...(Stream) != 0, decltype(kLaunch)>;
  (CheckViewType<kSignature, typename Traits::template View<kIndices>,
                 kIndices>(),
   ...);
  if constexpr (Traits::kHasParams) {
    return kLaunch(stream...,
                   ViewOf<typename Traits::template View<kIndices>>(
                       views[kIndices], kSignature.arguments[kIndices])...,
                   params);
  } else {
    return kLaunch(stream...,
                   ViewOf<typename Traits::template View<kIndices>>(
                       views[kIndices], kSignature.arguments[kIndices])...);
  }
}

namespace {  // NOLINT: as in params.h

// Whether the signature has sizes that are parameters.
template <const Signature& kSignature, typename Params>
constexpr bool HasSizeParams() {
  return std::apply(
      [](const auto&... field) {
        return (false || ... || kSignature.HasSize(field.name));
      },
      Params::Fields());
}

// The sizes of arrays that parameters give.
template <const Signature& kSignature, typename Params>
std::vector<NamedSize> SizesOf(const Params& params) {
  std::vector<NamedSize> sizes;
  ForEachField<Params>([&](const auto& field) {
    using T = typename std::decay_t<decltype(field)>::Type;
    if constexpr (std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>) {
      if (kSignature.HasSize(field.name)) {
        sizes.push_back({field.name, params.*field.member});
      }
    }
  });
  return sizes;
}

}  // namespace

// Checks that results that are operands share the operands' buffers. In another
// buffer, the elements that the kernel does not write would be missing.
inline Status CheckAliases(const Signature& signature,
                           const BufferView* views) {
  for (int i = signature.num_operands; i < signature.num_arguments(); ++i) {
    const int operand = signature.arguments[i].alias;
    if (operand < 0 || views[i].data == views[operand].data) continue;
    bool empty = false;
    for (int j = 0; j < views[i].rank; ++j) empty |= views[i].dims[j] == 0;
    if (empty) continue;
    return Status::Error(ArgumentName(signature, i),
                         ": expected the buffer of ",
                         ArgumentName(signature, operand),
                         " but got another one; the call needs aliases={",
                         i - signature.num_operands, ": ", operand, "}");
  }
  return Status::Ok();
}

// Checks the parameters, calls kLaunch, and logs if requested. It does not
// throw, because its caller is XLA.
template <const Signature& kSignature, auto kLaunch, typename Params,
          typename... Stream>
Status Launch(const char* entry, const BufferView* views, const Params& params,
              Stream... stream) {
  using Traits = LaunchTraits<sizeof...(Stream) != 0, decltype(kLaunch)>;
  static_assert(
      Traits::kNumViews == static_cast<size_t>(kSignature.num_arguments()),
      "the launch function takes another number of operands and results than "
      "the signature has");
  XLA_KERNEL_RETURN_IF_ERROR(CheckParams(params));
  if constexpr (HasSizeParams<kSignature, Params>()) {
    XLA_KERNEL_RETURN_IF_ERROR(
        CheckArguments(kSignature, views, SizesOf<kSignature>(params)));
  }
  XLA_KERNEL_RETURN_IF_ERROR(CheckAliases(kSignature, views));
  const auto begin = std::chrono::steady_clock::now();
  Status status = Status::Ok();
  try {
    status = CallLaunch<kSignature, kLaunch>(
        std::make_index_sequence<Traits::kNumViews>(), views, params,
        stream...);
  } catch (const std::exception& error) {
    status = Status::Error("the launch function threw: ", error.what());
  } catch (...) {
    status = Status::Error("the launch function threw");
  }
  if (LogsLaunches()) {
    const std::chrono::duration<double, std::micro> time =
        std::chrono::steady_clock::now() - begin;
    LogLaunch(kSignature, entry, views, time.count(), status);
  }
  return status;
}

}  // namespace internal
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_LAUNCH_H_
