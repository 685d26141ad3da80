// Checks that the arguments of a program, and the tensors of its state, are as
// they were when the program was made.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/graph/program.h"

namespace torch_xla_ext::graph {

void Program::CheckCount(const std::vector<at::Tensor>& arguments) const {
  const size_t expected = description_.argument_state.size();
  if (arguments.size() == expected) return;
  throw std::invalid_argument(
      description_.name + ": expected " + std::to_string(expected) +
      " tensors as arguments but got " + std::to_string(arguments.size()));
}

std::vector<size_t> Program::WrittenArguments() const {
  std::vector<size_t> indices;
  for (size_t parameter : description_.written) {
    const Source& source = description_.parameters[parameter];
    if (source.kind == Source::kArgument) indices.push_back(source.index);
  }
  return indices;
}

std::vector<size_t> Program::ArgumentsToCopy(
    const std::vector<at::Tensor>& arguments) const {
  CheckCount(arguments);
  std::vector<std::pair<const Storage*, size_t>> written;
  for (size_t index : WrittenArguments()) {
    written.emplace_back(StorageOf(arguments[index]), index);
  }
  std::vector<size_t> copied;
  if (written.empty()) return copied;
  std::sort(written.begin(), written.end());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Storage* const storage = StorageOf(arguments[i]);
    const auto found = std::lower_bound(written.begin(), written.end(),
                                        std::pair(storage, size_t{0}));
    if (found != written.end() && found->first == storage &&
        (found->second != i || HasOwnValues(arguments[i]))) {
      copied.push_back(i);
    }
  }
  return copied;
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
  std::vector<Found> state;
  return FindState(arguments, &state);
}

void Program::Prefetch(const StateTensor& expected) {
  constexpr size_t kCacheLine = 64;
  const auto fetch = [](const void* object, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i += kCacheLine) {
      __builtin_prefetch(static_cast<const char*>(object) + i);
    }
  };
  // A TensorImpl begins with its reference counts and pointers. Its type is at
  // its end. The sizes between them are not read.
  constexpr size_t kType = sizeof(c10::TensorImpl) - kCacheLine;
  const void* const tensor = expected.tensor._unsafe_get_target();
  fetch(tensor, 0, kCacheLine);
  fetch(tensor, kType, sizeof(at::FunctionalTensorWrapper));
  fetch(expected.last_storage, 0, sizeof(Storage));
  fetch(expected.last_base, 0, kCacheLine);
  fetch(expected.last_base, kType, sizeof(c10::TensorImpl) + sizeof(void*));
  fetch(expected.last_tensor, 0, kCacheLine);
  fetch(expected.last_data, 0, kCacheLine);
}

bool Program::HasKnownBase(const StateTensor& expected,
                           const Found& found) const {
  return found.has_data && found.storage == expected.last_storage &&
         expected.parameter && HasKnownData(*expected.parameter, found.base);
}

bool Program::FindState(const std::vector<at::Tensor>& arguments,
                        std::vector<Found>* state) {
  CheckCount(arguments);
  state->reserve(state_.size());
  bool same_storages = !state_storages_.empty() || state_.empty();
  constexpr size_t kAhead = 4;
  for (size_t i = 0; i < std::min(kAhead, state_.size()); ++i) {
    Prefetch(state_[i]);
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    if (i + kAhead < state_.size()) Prefetch(state_[i + kAhead]);
    StateTensor& expected = state_[i];
    Found& found = state->emplace_back();
    found.tensor = at::Tensor(expected.tensor.lock());
    const at::Tensor& tensor = found.tensor;
    if (!tensor.defined()) return false;
    const auto* wrapper =
        at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
    found.storage = UncheckedStorageOf(tensor);
    found.base = BaseOf(found.storage);
    if (found.base == nullptr) return false;
    found.has_data = HasDataOf(found.base, found.storage, tensor);
    if ((!HasKnownBase(expected, found) && tensor.sizes() != expected.sizes) ||
        wrapper->isBaseTensor() == expected.is_view ||
        wrapper->has_metadata_mutation() != expected.has_new_metadata ||
        tensor.scalar_type() != expected.dtype ||
        tensor.requires_grad() != expected.requires_grad ||
        (tensor.is_leaf() && tensor.grad().defined()) != expected.has_grad) {
      return false;
    }
    if (found.storage != expected.last_storage) {
      if (expected.is_view) return false;  // may show another part
      same_storages = false;
    }
    expected.last_storage = found.storage;
    expected.last_base = found.storage->base().unsafeGetTensorImpl();
    expected.last_tensor = found.base.get();
    expected.last_data = found.base->torch::lazy::LazyTensor::data().get();
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

bool Program::HasCachedShardings(const std::vector<Input>& inputs) const {
  if (computation_ == nullptr || !computation_->is_sharded) return true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Source& source = description_.parameters[i];
    if (source.kind != Source::kState || HasKnownData(i, inputs[i].base)) {
      continue;
    }
    if (inputs[i].base->sharding_spec() != state_[source.index].sharding) {
      return false;
    }
  }
  return true;
}

void Program::CacheShardings() {
  for (StateTensor& state : state_) {
    const at::Tensor tensor(state.tensor.lock());
    if (!tensor.defined()) continue;
    state.sharding = BaseOf(StorageOf(tensor))->sharding_spec();
  }
}

}  // namespace torch_xla_ext::graph
