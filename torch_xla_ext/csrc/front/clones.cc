// Interposes on XLATensor::GetXlaData, which returns a tensor's data to a
// reader. A clone that has not been computed yet has the data of its source.
// The stock function makes that data the clone's own; when the source is
// written to, its data is donated, and the clone's is gone.
//
// This works because the stock binary calls it through its PLT.
#include <dlfcn.h>
#include <torch/csrc/lazy/backend/backend_interface.h>

#include "torch_xla_ext/csrc/front/abi/torch_xla.h"

namespace torch_xla {

torch::lazy::BackendDataPtr XLATensor::GetXlaData() {
  const auto& values = torch::lazy::LazyTensor::data();
  if (data()->is_cloned && values->handle == nullptr && values->ir_value) {
    torch::lazy::BackendDataPtr sources =
        torch::lazy::getBackend()->GetComputationDataFromNode(
            values->ir_value.node.get());
    // The clone stays a pending clone, which the next step computes.
    if (sources != nullptr && sources->HasValue()) return sources;
  }
  using Function = torch::lazy::BackendDataPtr(XLATensor*);
  static auto* const stock = reinterpret_cast<Function*>(
      dlsym(RTLD_NEXT, "_ZN9torch_xla9XLATensor10GetXlaDataEv"));
  return stock(this);
}

}  // namespace torch_xla
