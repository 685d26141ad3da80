// Looks up the upstream binary's own function behind an interposed one.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_UPSTREAM_FUNCTION_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_UPSTREAM_FUNCTION_H_

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>

namespace torch_xla {

// The next definition of the symbol of an exported function.
inline void* NextDefinition(void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_sname == nullptr) {
    throw std::logic_error("torch_xla_ext: a replacement is not exported");
  }
  return dlsym(RTLD_NEXT, info.dli_sname);
}

// The upstream function that this library's `replacement` stands before.
template <typename Result, typename... Args>
auto UpstreamFunction(Result (*replacement)(Args...)) {
  return reinterpret_cast<Result (*)(Args...)>(
      NextDefinition(reinterpret_cast<void*>(replacement)));
}

// The same for a member function that is not virtual here. In the Itanium C++
// ABI, a pointer to it begins with its address.
template <typename This, typename Result, typename Member, typename... Args>
auto UpstreamMember(Member replacement) {
  void* address;
  std::memcpy(&address, &replacement, sizeof(address));
  return reinterpret_cast<Result (*)(This*, Args...)>(NextDefinition(address));
}
template <typename Class, typename Result, typename... Args>
auto UpstreamFunction(Result (Class::*replacement)(Args...)) {
  return UpstreamMember<Class, Result, decltype(replacement), Args...>(
      replacement);
}
template <typename Class, typename Result, typename... Args>
auto UpstreamFunction(Result (Class::*replacement)(Args...) const) {
  return UpstreamMember<const Class, Result, decltype(replacement), Args...>(
      replacement);
}

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_UPSTREAM_FUNCTION_H_
