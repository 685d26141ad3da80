#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COUNTING_LIBRARY_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COUNTING_LIBRARY_H_

#include <torch/csrc/lazy/core/metrics.h>
#include <torch/library.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/eager_mode.h"

namespace torch_xla_ext::aten_overrides {

// Registers kernels that count their calls in upstream's counters ("xla::mul"),
// which programs read. A kernel that calls upstream's kernel of this name is
// counted there.
class CountingLibrary {
 public:
  explicit CountingLibrary(torch::Library& library) : library_(library) {}

  template <typename Result, typename... Arguments>
  void impl(const char* name, Result (*kernel)(Arguments...)) {
    const std::string_view overload = name;
    const auto counter = std::make_shared<torch::lazy::Counter>(
        "xla::" + std::string(overload.substr(0, overload.find('.'))));
    library_.impl(name, [kernel, counter](Arguments... arguments) -> Result {
      const Called called(*counter);
      return CallAsOneOperator(
          [&]() -> Result {
            return kernel(std::forward<Arguments>(arguments)...);
          },
          arguments...);
    });
  }

 private:
  struct Called {
    explicit Called(torch::lazy::Counter& counter)
        : counter(counter), before(counter.Value()) {}
    ~Called() {
      if (counter.Value() == before) counter.AddValue(1);
    }
    torch::lazy::Counter& counter;
    const int64_t before;
  };

  torch::Library& library_;
};

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COUNTING_LIBRARY_H_
