#include "torch_xla_ext/csrc/capture/program.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

namespace torch_xla_ext::capture {
namespace {

// Holders of a written parameter's data that are known: its tensor, and Run's
// own vector.
constexpr int64_t kKnownHolders = 2;

}  // namespace

Program::Program(Description description)
    : description_(std::move(description)),
      device_(torch_xla::bridge::GetCurrentDevice()) {
  std::unordered_map<const Storage*, size_t> first;
  for (const at::Tensor& tensor : description_.state) {
    const Storage* storage = StorageOf(tensor);
    const auto* wrapper =
        at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
    StateTensor state{
        c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())};
    state.sizes = tensor.sizes().vec();
    state.dtype = tensor.scalar_type();
    state.requires_grad = tensor.requires_grad();
    state.has_grad = tensor.is_leaf() && tensor.grad().defined();
    state.is_view = !wrapper->isBaseTensor();
    state.has_new_metadata = wrapper->has_metadata_mutation();
    state.group = first.emplace(storage, state_.size()).first->second;
    state.last_storage = storage;
    state_.push_back(std::move(state));
  }
  description_.state.clear();
  for (const Source& source : description_.parameters) {
    uses_seed_ = uses_seed_ || source.kind == Source::kSeed;
  }
}

at::Tensor Program::Find(const Source& source,
                         const std::vector<at::Tensor>& arguments) const {
  switch (source.kind) {
    case Source::kArgument:
      return arguments.at(source.index);
    case Source::kConstant:
      return description_.constants[source.index];
    case Source::kState:
    case Source::kGradient: {
      at::Tensor tensor(state_[source.index].tensor.lock());
      return source.kind == Source::kState || !tensor.defined() ? tensor
                                                                : tensor.grad();
    }
    case Source::kSeed:
      break;
  }
  return at::Tensor();
}

bool Program::StorageGroupsMatch() {
  state_storages_.clear();
  for (size_t i = 0; i < state_.size(); ++i) {
    const Storage* storage = state_[i].last_storage;
    if (state_storages_.emplace(storage, i).first->second != state_[i].group) {
      state_storages_.clear();
      return false;
    }
  }
  return true;
}

bool Program::Matches(const std::vector<at::Tensor>& arguments) {
  bool same_storages = !state_storages_.empty() || state_.empty();
  for (StateTensor& expected : state_) {
    const at::Tensor tensor(expected.tensor.lock());
    if (!tensor.defined()) return false;
    const auto* wrapper =
        at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
    if (tensor.sizes() != expected.sizes ||
        wrapper->isBaseTensor() == expected.is_view ||
        wrapper->has_metadata_mutation() != expected.has_new_metadata ||
        tensor.scalar_type() != expected.dtype ||
        tensor.requires_grad() != expected.requires_grad ||
        (tensor.is_leaf() && tensor.grad().defined()) != expected.has_grad) {
      return false;
    }
    const Storage* storage = StorageOf(tensor);
    if (storage != expected.last_storage) {
      if (expected.is_view) return false;  // perhaps another part
      same_storages = false;
    }
    expected.last_storage = storage;
  }
  if (!same_storages && !StorageGroupsMatch()) return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto found = state_storages_.find(StorageOf(arguments[i]));
    const int64_t shared = found == state_storages_.end()
                               ? -1
                               : static_cast<int64_t>(found->second);
    if (shared != description_.argument_state[i]) return false;
  }
  return true;
}

void Program::CheckValues(
    const std::vector<torch_xla::XLATensorPtr>& bases) const {
  for (size_t i = 0; i < bases.size(); ++i) {
    if (bases[i] == nullptr) continue;  // the seed
    const torch::lazy::BackendDataPtr data = DataOf(bases[i]);
    if (data == nullptr || data->HasValue()) continue;
    throw std::runtime_error("captured step: " + description_.names[i] +
                             " has no value, for the program that was to "
                             "compute it failed: make the tensor anew");
  }
}

std::vector<at::Tensor> Program::Run(const std::vector<at::Tensor>& arguments) {
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  const size_t count = description_.parameters.size();
  std::vector<Storage*> storages(count, nullptr);
  std::vector<torch_xla::XLATensorPtr> bases(count);
  std::vector<at::IValue> inputs;
  inputs.reserve(count);
  std::vector<torch_xla::XLATensorPtr> pending;
  for (size_t i = 0; i < count; ++i) {
    const Source& source = description_.parameters[i];
    if (source.kind == Source::kSeed) {
      // As a lazy trace, which goes on from the numbers drawn since the last
      // step.
      executor->SetRngSeed(device_, executor->GetRunningSeed(device_));
      inputs.emplace_back(
          torch_xla::bridge::AtenFromXlaTensor(torch_xla::XLATensor::Create(
              executor->GetBaseSeedData(device_), at::kLong)));
      continue;
    }
    const at::Tensor tensor = Find(source, arguments);
    if (!tensor.defined()) {
      throw std::runtime_error("captured step: " + description_.names[i] +
                               " is gone");
    }
    storages[i] = StorageOf(tensor);
    bases[i] = BaseOf(storages[i]);
    inputs.emplace_back(storages[i]->base());
    if (DataOf(bases[i]) == nullptr) pending.push_back(bases[i]);
  }
  if (!pending.empty()) Materialize(std::move(pending));

  std::vector<torch::lazy::BackendDataPtr> donated;
  if (!description_.written.empty()) {
    donated.reserve(description_.written.size());
    // Until the last program has been started it holds its arguments and
    // results.
    executor->WaitDeviceOps({});
    for (size_t i : description_.written) {
      torch::lazy::BackendDataPtr data = DataOf(bases[i]);
      bases[i]->SetXlaData(data);
      // What else holds the buffer, such as a clone that was not computed yet,
      // still needs its values.
      if (data.use_count() > kKnownHolders) {
        bases[i]->SetXlaData(CopyOf(data, storages[i]->base().scalar_type()));
      }
    }
  }
  std::vector<torch::lazy::BackendDataPtr> results;
  if (!description_.written.empty() || !description_.output_dtypes.empty()) {
    try {
      results = executor->ExecuteComputationWithBarrier(description_.hash,
                                                        inputs, device_);
    } catch (const std::exception&) {
      CheckValues(bases);
      throw;
    }
  }
  executor->MarkStep(device_, /*reset_scope=*/false);
  donated_ = std::move(donated);
  size_t next = 0;
  for (size_t i : description_.written) {
    SetData(storages[i], bases[i], results.at(next++));
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(description_.output_dtypes.size());
  for (at::ScalarType dtype : description_.output_dtypes) {
    outputs.push_back(torch_xla::bridge::AtenFromXlaTensor(
        torch_xla::XLATensor::Create(results.at(next++), dtype)));
  }
  return outputs;
}

}  // namespace torch_xla_ext::capture
