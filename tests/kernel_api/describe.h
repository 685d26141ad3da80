// Parameters of any type as text, as untyped_payload_test.py writes them.
#ifndef TESTS_KERNEL_API_DESCRIBE_H_
#define TESTS_KERNEL_API_DESCRIBE_H_

#include <string>
#include <string_view>

#include "torch_xla_ext/params.h"

template <typename Params>
std::string DescribeParams(const Params& params);

template <typename T>
std::string DescribeValue(const T& value) {
  namespace internal = torch_xla_ext::internal;
  if constexpr (internal::IsNested<T>::value) {
    return "{" + DescribeParams(value) + "}";
  } else if constexpr (internal::IsNumbers<T>::value) {
    std::string text = "[";
    for (const auto number : value) text += internal::NumberText(number) + ",";
    return text + "]";
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    return "'" + std::string(value) + "'";
  } else {
    return internal::NumberText(value);
  }
}

template <typename Params>
std::string DescribeParams(const Params& params) {
  std::string text;
  torch_xla_ext::internal::ForEachField<Params>([&](const auto& field) {
    if (!text.empty()) text += ' ';
    text += DescribeValue(params.*field.member);
  });
  return text;
}

#endif  // TESTS_KERNEL_API_DESCRIBE_H_
