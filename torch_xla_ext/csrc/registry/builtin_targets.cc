#include "torch_xla_ext/csrc/registry/builtin_targets.h"

#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

// The address range of the library that contains an address. dladdr would also
// look up the symbol, which takes milliseconds in a library of XLA's size.
class Library {
 public:
  explicit Library(const void* address)
      : begin_(reinterpret_cast<uintptr_t>(address)) {
    dl_iterate_phdr(&Library::Visit, this);
  }
  bool Has(const void* address) const {
    const auto value = reinterpret_cast<uintptr_t>(address);
    return begin_ <= value && value < end_;
  }

 private:
  static int Visit(dl_phdr_info* info, size_t, void* library) {
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD) continue;
      const uintptr_t address = info->dlpi_addr + segment.p_vaddr;
      begin = std::min(begin, address);
      end = std::max(end, address + segment.p_memsz);
    }
    auto* self = static_cast<Library*>(library);
    if (self->begin_ < begin || self->begin_ >= end) return 0;
    self->begin_ = begin;
    self->end_ = end;
    return 1;
  }

  uintptr_t begin_;
  uintptr_t end_ = 0;
};

}  // namespace

bool IsBuiltinTarget(std::string_view name, const void* function) {
  static const Library xla(
      reinterpret_cast<const void*>(&xla::CustomCallTargetRegistry::Global));
  static const Library others[] = {
      Library(reinterpret_cast<const void*>(&std::fputs)),
      Library(reinterpret_cast<const void*>(
          static_cast<double (*)(double)>(&std::tan))),
      Library(reinterpret_cast<const void*>(&_Unwind_Backtrace)),
  };
  // If kernels are linked into XLA's library, only the name distinguishes them.
  if (xla.Has(function)) {
    return name.substr(0, 2) == "__" || name == "memrefCopy" ||
           name == "NopReturnToken";
  }
  return std::any_of(
      std::begin(others), std::end(others),
      [function](const Library& library) { return library.Has(function); });
}

bool IsCompilerTarget(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "LayoutConstraint", "PadToStatic", "SliceToDynamic", "TopK"};
  return std::find(std::begin(kNames), std::end(kNames), name) !=
         std::end(kNames);
}

}  // namespace torch_xla_ext
