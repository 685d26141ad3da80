// Stands before XLATensor::GetXlaData, which gives the data of a tensor to who
// reads it. A clone that was not computed yet has the data of its source: the
// stock function makes it the clone's own, and it is gone once the source is
// written to, whose data is donated then.
//
// It may, because the stock binary calls it through its PLT.
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
    // The clone stays one, and the next step computes it.
    if (sources != nullptr && sources->HasValue()) return sources;
  }
  using Function = torch::lazy::BackendDataPtr(XLATensor*);
  static auto* const stock = reinterpret_cast<Function*>(
      dlsym(RTLD_NEXT, "_ZN9torch_xla9XLATensor10GetXlaDataEv"));
  return stock(this);
}

}  // namespace torch_xla
