// Stands before XLAGraphExecutor::SyncTensorsGraph, which takes from tensors
// what they are computed from, before the program is compiled. If that fails,
// they had neither operations nor a value: all that was pending was lost, and
// each later sync() failed too. Here they get their operations back.
//
// The stock binary calls the function through its PLT. Here its own is called.
#include <dlfcn.h>

#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/front/abi/torch_xla.h"

namespace torch_xla {

void XLAGraphExecutor::SyncTensorsGraph(std::vector<XLATensorPtr>* tensors,
                                        absl::Span<const std::string> devices,
                                        bool wait, bool sync_ltc_data,
                                        bool warm_up_cache_only) {
  using Stock = void (*)(XLAGraphExecutor*, std::vector<XLATensorPtr>*,
                         absl::Span<const std::string>, bool, bool, bool);
  static const auto stock = reinterpret_cast<Stock>(dlsym(
      RTLD_NEXT,
      "_ZN9torch_xla16XLAGraphExecutor16SyncTensorsGraphEPSt6vectorIN3c1013intr"
      "usive_ptrINS_9XLATensorENS2_6detail34intrusive_target_default_null_typeI"
      "S4_EEEESaIS8_EEN4absl12lts_202308024SpanIKNSt7__cxx1112basic_stringIcSt1"
      "1char_traitsIcESaIcEEEEEbbb"));
  struct Pending {
    XLATensorPtr tensor;
    torch::lazy::Value value;
  };
  std::vector<Pending> pending;
  for (const XLATensorPtr& tensor : *tensors) {
    const auto& data = tensor->torch::lazy::LazyTensor::data();
    if (data->handle == nullptr && data->ir_value) {
      pending.push_back({tensor, data->ir_value});
    }
  }
  try {
    stock(this, tensors, devices, wait, sync_ltc_data, warm_up_cache_only);
  } catch (...) {
    for (Pending& lost : pending) {
      const auto& data = lost.tensor->torch::lazy::LazyTensor::data();
      if (data->handle == nullptr && !data->ir_value && !data->tensor_data) {
        data->ir_value = std::move(lost.value);
        ++data->generation;
      }
    }
    throw;
  }
}

}  // namespace torch_xla
