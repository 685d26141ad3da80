// Interposes on XLATensor::GetXlaData, which returns a tensor's data to a
// reader: not the data that a clone shares with its source
// (runtime/pending_values.h), and not before it has a value
// (runtime/tensor_lock.h).
//
// This works because the stock binary calls it through its PLT.
#include <optional>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/stock.h"
#include "torch_xla_ext/csrc/runtime/pending_values.h"
#include "torch_xla_ext/csrc/runtime/tensor_lock.h"

namespace torch_xla {

torch::lazy::BackendDataPtr XLATensor::GetXlaData() {
  using Function = torch::lazy::BackendDataPtr(XLATensor*);
  static Function* const stock = Stock(static_cast<Function*>(nullptr),
                                       "_ZN9torch_xla9XLATensor10GetXlaDataEv");
  while (true) {
    // Another thread may be giving the tensor data in place of its operations.
    std::optional<torch_xla_ext::TensorLock> lock;
    if (!torch_xla_ext::DeviceIsLocked::ByThisThread()) lock.emplace();
    torch::lazy::BackendDataPtr source =
        torch_xla_ext::DataOfPendingClone(*this);
    if (source != nullptr) return source;
    const torch::lazy::BackendDataPtr handle = data()->handle;
    if (handle == nullptr || handle->HasValue()) return stock(this);
    lock.reset();
    torch_xla_ext::WaitForValue(*handle);
  }
}

}  // namespace torch_xla
