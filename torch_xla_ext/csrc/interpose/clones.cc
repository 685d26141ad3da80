// Interposes on XLATensor::GetXlaData, which returns a tensor's data to a
// reader. Here it does not return data that a clone shares with its source
// (runtime_fixes/pending_values.h), and waits until the data has a value
// (runtime_fixes/tensor_lock.h).
//
// This works because the upstream binary calls it through its PLT.
#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/pending_values.h"
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"

namespace torch_xla {

torch::lazy::BackendDataPtr XLATensor::GetXlaData() {
  static const auto upstream = UpstreamFunction(&XLATensor::GetXlaData);
  const torch_xla_ext::ValueLock lock(*this);
  torch::lazy::BackendDataPtr source = torch_xla_ext::DataOfPendingClone(*this);
  return source != nullptr ? source : upstream(this);
}

}  // namespace torch_xla
