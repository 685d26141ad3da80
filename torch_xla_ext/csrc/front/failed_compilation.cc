// Stands before XLAGraphExecutor::SyncTensorsGraph: if it fails, pending
// tensors keep their operations (calls/failures.h).
//
// The stock binary calls the function through its PLT. Here its own is called.
#include <dlfcn.h>

#include <string>
#include <vector>

#include "torch_xla_ext/csrc/calls/failures.h"
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
  torch_xla_ext::KeepPending(*tensors, [&] {
    stock(this, tensors, devices, wait, sync_ltc_data, warm_up_cache_only);
  });
}

}  // namespace torch_xla
