#include "torch_xla_ext/csrc/graph/program.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/failures.h"
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"
#include "torch_xla_ext/csrc/runtime_fixes/without_gil.h"

namespace torch_xla_ext::graph {
namespace {

// Whether something besides the tensor, such as a pending clone, refers to its
// data and still needs the values.
bool IsShared(const torch_xla::XLATensorPtr& tensor) {
  const auto& data = tensor->torch::lazy::LazyTensor::data();
  if (data->handle == nullptr || data->ir_value || data->tensor_data) {
    tensor->SetXlaData(DataOf(tensor));
  }
  return data->handle.use_count() > 1;
}

const torch::lazy::BackendDataPtr& HandleOf(
    const torch_xla::XLATensorPtr& tensor) {
  return tensor->torch::lazy::LazyTensor::data()->handle;
}

// Whether all values of the node are one number, as in torch.ones_like().
bool IsConstant(const torch::lazy::Node& node) {
  if (node.op().op == at::prim::Constant) return true;
  return node.op().op == at::aten::expand && IsConstant(*node.operand(0).node);
}

bool IsSame(const std::weak_ptr<torch::lazy::BackendData>& data,
            const torch::lazy::BackendDataPtr& other) {
  return !data.owner_before(other) && !other.owner_before(data);
}

// Whether PT_XLA_DEBUG asks for a message at each execution, which upstream's
// function writes.
bool ReportsExecutions() {
  static const bool reports = [] {
    if (const char* level = std::getenv("PT_XLA_DEBUG_LEVEL")) {
      return std::atoi(level) > 1;
    }
    const char* flag = std::getenv("PT_XLA_DEBUG");
    return flag != nullptr &&
           (std::string_view(flag) == "1" || std::string_view(flag) == "true");
  }();
  return reports;
}

}  // namespace

Program::Program(Description description)
    : description_(std::move(description)),
      device_(torch_xla::bridge::GetCurrentDevice()),
      device_name_(device_.toString()) {
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
  FindComputation();
  is_written_.resize(description_.parameters.size());
  data_.resize(description_.parameters.size());
  for (size_t i : description_.written) is_written_[i] = true;
  for (size_t i = 0; i < description_.parameters.size(); ++i) {
    const Source& source = description_.parameters[i];
    if (source.kind != Source::kState) continue;
    auto& parameter = state_[source.index].parameter;
    if (!parameter) parameter = i;
  }
}

void Program::FindComputation() {
  if (IsEmpty()) return;
  computation_ = torch_xla::XLAGraphExecutor::Get()->GetComputationCache()->Get(
      description_.hash);
}

at::Tensor Program::Find(const Source& source,
                         const std::vector<at::Tensor>& arguments,
                         const std::vector<Found>& state) const {
  switch (source.kind) {
    case Source::kArgument:
    case Source::kOwnValues:
      return arguments[source.index];
    case Source::kConstant:
      return description_.constants[source.index];
    case Source::kState:
    case Source::kGradient: {
      const at::Tensor& tensor = state[source.index].tensor;
      return source.kind == Source::kState || !tensor.defined() ? tensor
                                                                : tensor.grad();
    }
    case Source::kSeed:
      break;
  }
  return at::Tensor();
}

void Program::ReleaseGradients(const std::vector<at::Tensor>& arguments,
                               const std::vector<Found>& state) const {
  for (const Source& source : description_.replaced_gradients) {
    const at::Tensor tensor = Find(source, arguments, state);
    if (tensor.defined()) tensor.mutable_grad().reset();
  }
}

std::vector<Program::Input> Program::Gather(
    const std::vector<at::Tensor>& arguments, const std::vector<Found>& state) {
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  std::vector<Input> inputs(description_.parameters.size());
  std::vector<torch_xla::XLATensorPtr> pending;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Source& source = description_.parameters[i];
    if (source.kind == Source::kSeed) {
      // As in a lazy trace, continue from the random numbers that were drawn
      // since the last step.
      executor->SetRngSeed(device_, executor->GetRunningSeed(device_));
      inputs[i].data = executor->GetBaseSeedData(device_);
      continue;
    }
    if (source.kind == Source::kState && state[source.index].base != nullptr) {
      const Found& found = state[source.index];
      inputs[i].storage = found.storage;
      inputs[i].base = found.base;
      inputs[i].has_data = found.has_data;
    } else {
      at::Tensor tensor = Find(source, arguments, state);
      if (!tensor.defined()) {
        throw std::runtime_error(description_.name + ": " +
                                 description_.names[i] + " has been deleted");
      }
      if (source.kind == Source::kOwnValues) {
        inputs[i].base = torch_xla::bridge::TryGetXlaTensor(tensor);
      } else {
        inputs[i].storage = StorageOf(tensor);
        inputs[i].base = BaseOf(inputs[i].storage);
        inputs[i].has_data =
            is_written_[i] &&
            HasDataOf(inputs[i].base, inputs[i].storage, tensor);
      }
      inputs[i].tensor = std::move(tensor);
    }
    if (HasData(inputs[i].base) || Transfer(inputs[i].base)) continue;
    inputs[i].data = ConstantOf(i, inputs[i].base);
    if (inputs[i].data != nullptr) {
      inputs[i].base = nullptr;
    } else {
      pending.push_back(inputs[i].base);
    }
  }
  if (!pending.empty()) Materialize(std::move(pending));
  return inputs;
}

torch::lazy::BackendDataPtr Program::ConstantOf(
    size_t parameter, const torch_xla::XLATensorPtr& tensor) {
  const TensorLock lock;
  const std::lock_guard<std::mutex> guard(*run_mutex_);
  if (is_written_[parameter] || result_shapes_.empty() ||
      tensor->sharding_spec() != nullptr) {
    return nullptr;
  }
  const torch::lazy::Value value =
      tensor->torch::lazy::LazyTensor::data()->ir_value;
  if (!value || !IsConstant(*value.node)) return nullptr;
  auto& [hash, data] = constants_[parameter];
  if (data == nullptr || hash != value.hash()) {
    // A copy, because the tensor may donate its own data.
    const torch_xla::XLATensorPtr copy = torch_xla::XLATensor::Create(
        value, device_, /*logical_element_type=*/std::nullopt,
        /*delay_eager_execution=*/false);
    Materialize({copy});
    data = DataOf(copy);
    hash = value.hash();
  }
  return data;
}

bool Program::HasKnownData(size_t parameter,
                           const torch_xla::XLATensorPtr& base) const {
  const torch::lazy::BackendDataPtr& handle = HandleOf(base);
  return handle != nullptr && IsSame(data_[parameter], handle);
}

void Program::CheckHaveValues(const std::vector<Input>& inputs) {
  const uint64_t num_losses = NumLosses();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].base == nullptr) continue;
    const bool is_known = HasKnownData(i, inputs[i].base);
    if (is_known && num_losses == num_losses_) continue;
    if (!HasValue(inputs[i].base)) {
      throw std::runtime_error(
          description_.name + ": " + description_.names[i] +
          " has no value, because the program that should have "
          "computed it failed: create the tensor again");
    }
    if (!is_known && !is_written_[i]) {
      data_[i] = inputs[i].base->torch::lazy::LazyTensor::data()->handle;
    }
  }
  num_losses_ = num_losses;
}

bool Program::IsReady(const std::vector<Input>& inputs,
                      const LaunchTicket& ticket) {
  const uint64_t num_losses = NumLosses();
  std::vector<torch::lazy::BackendDataPtr> unknown;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].base == nullptr ||
        (num_losses == num_losses_ && HasKnownData(i, inputs[i].base))) {
      continue;
    }
    unknown.push_back(DataOf(inputs[i].base));
  }
  if (!ticket.WillHaveValues(std::move(unknown))) return false;
  std::vector<const torch::lazy::BackendDataPtr*> shared;
  for (size_t i : description_.written) {
    if (IsShared(inputs[i].base)) shared.push_back(&HandleOf(inputs[i].base));
  }
  if (!shared.empty() && !ticket.HasAllOthers(shared)) return false;
  num_losses_ = num_losses;
  return true;
}

LaunchTicket Program::Prepare(const std::vector<Input>& inputs,
                              bool may_queue) {
  if (may_queue) {
    std::optional<LaunchTicket> ticket = LaunchTicket::Behind(device_);
    if (ticket && IsReady(inputs, *ticket)) return std::move(*ticket);
  }
  std::vector<const Input*> shared;
  while (true) {
    // The previous program holds its arguments until it has been started.
    std::optional<LaunchTicket> ticket(std::in_place, device_);
    CheckHaveValues(inputs);
    shared.clear();
    for (size_t i : description_.written) {
      if (IsShared(inputs[i].base)) shared.push_back(&inputs[i]);
    }
    if (shared.empty()) return std::move(*ticket);
    ticket.reset();  // copying runs a program
    for (const Input* input : shared) {
      const torch::lazy::BackendDataPtr copy =
          CopyOf(DataOf(input->base), input->storage->base().scalar_type());
      input->base->SetXlaData(copy);
    }
  }
}

torch::lazy::BackendDataPtr Program::MakeResult(size_t number) const {
  auto* const client = torch_xla::runtime::GetComputationClientIfInitialized();
  std::optional<xla::OpSharding> sharding;
  if (computation_->is_sharded) {
    sharding.emplace(result_shardings_[number]->sharding);
  }
  return client->CreateDataPlaceholder(device_name_, result_shapes_[number],
                                       std::move(sharding));
}

torch::lazy::BackendDataPtr Program::TakeWritten(
    size_t number, std::vector<Donated>* free) const {
  if (free == nullptr || !(*free)[number].is_reusable ||
      (*free)[number].data.use_count() > 1) {
    return MakeResult(number);
  }
  // Pairs with other threads' release of the data.
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::move((*free)[number].data);
}

std::vector<torch::lazy::BackendDataPtr> Program::Start(
    LaunchTicket ticket, const std::vector<Input>& inputs,
    StartFunction start) {
  const size_t num_written = description_.written.size();
  if (result_shapes_.empty()) {
    const DeviceIsLocked locked;
    for (size_t i : description_.written) {
      result_shapes_.push_back(inputs[i].base->shape().get());
    }
    for (const Description::Output& output : description_.outputs) {
      result_shapes_.push_back(output.shape);
    }
  }
  if (no_value_ == nullptr) no_value_ = MakeResult(0);
  auto launch = std::make_shared<Launch>();
  launch->device = device_;
  launch->computation = computation_->computation;
  launch->is_sharded = computation_->is_sharded;
  launch->no_value = no_value_;
  launch->arguments.reserve(inputs.size());
  for (const Input& input : inputs) {
    const torch::lazy::BackendDataPtr& data =
        input.base == nullptr ? input.data : HandleOf(input.base);
    launch->arguments.push_back(
        data != nullptr
            ? std::static_pointer_cast<Launch::Data>(data)
            : std::static_pointer_cast<Launch::Data>(DataOf(input.base)));
  }
  launch->written = description_.written;
  launch->results.reserve(result_shapes_.size());
  // Destroys the values of the run before the last one. Reuses data whose
  // values an earlier run has destroyed, if that run has ended.
  constexpr size_t kMaxKept = 8;
  std::shared_ptr<std::vector<Donated>> free;
  if (donated_.size() > 2 && num_written > 0 &&
      (donated_.front().use_count() == 1 || donated_.size() > kMaxKept)) {
    free = std::move(donated_.front());
    donated_.pop_front();
    if (free.use_count() > 1) free = nullptr;  // a launch still needs it
    std::atomic_thread_fence(std::memory_order_acquire);  // after its use
  }
  auto owner = std::make_shared<std::vector<Donated>>(num_written);
  std::vector<Donated>& donated = *owner;
  for (size_t k = 0; k < num_written; ++k) {
    const size_t i = description_.written[k];
    donated[k].data = launch->arguments[i];
    donated[k].is_reusable = IsSame(data_[i], donated[k].data);
    torch::lazy::BackendDataPtr result = TakeWritten(k, free.get());
    launch->results.push_back(result);
    data_[i] = result;
    // IsShared has shown that the tensor has only its data, so its handle can
    // be set directly. SetXlaData would also make PyTorch recompute the
    // tensor's sizes.
    inputs[i].base->torch::lazy::LazyTensor::data()->handle = std::move(result);
  }
  if (donated_.size() > 1) launch->unused = donated_[donated_.size() - 2];
  if (num_written > 0) donated_.push_back(std::move(owner));
  std::vector<torch::lazy::BackendDataPtr> outputs;
  outputs.reserve(description_.outputs.size());
  for (size_t k = 0; k < description_.outputs.size(); ++k) {
    outputs.push_back(MakeResult(num_written + k));
    launch->results.push_back(outputs.back());
  }
  start(std::move(ticket), std::move(launch));
  for (size_t i : description_.written) {
    const Input& input = inputs[i];
    if (!input.has_data || HasSeveralTensors(input.storage)) {
      UpdateViews(input.storage);
    }
  }
  return outputs;
}

std::vector<torch::lazy::BackendDataPtr> Program::StartSharded(
    const std::vector<Input>& inputs) {
  std::vector<at::IValue> arguments;
  arguments.reserve(inputs.size());
  for (const Input& input : inputs) {
    if (input.base == nullptr) {
      arguments.emplace_back(torch_xla::bridge::AtenFromXlaTensor(
          torch_xla::XLATensor::Create(input.data, at::kLong)));
    } else {
      arguments.emplace_back(input.storage == nullptr ? input.tensor
                                                      : input.storage->base());
    }
  }
  auto donated = std::make_shared<std::vector<Donated>>();
  for (size_t i : description_.written) {
    donated->push_back({DataOf(inputs[i].base), /*is_reusable=*/false});
  }
  donated_.clear();
  donated_.push_back(std::move(donated));
  std::vector<torch::lazy::BackendDataPtr> results =
      torch_xla::XLAGraphExecutor::Get()->ExecuteComputationWithBarrier(
          description_.hash, arguments, device_);
  std::vector<xla::Shape> shapes;
  result_shardings_.clear();
  for (const torch::lazy::BackendDataPtr& result : results) {
    const torch_xla::XLATensorPtr tensor =
        torch_xla::XLATensor::Create(result, std::nullopt);
    shapes.push_back(tensor->shape().get());
    result_shardings_.push_back(tensor->sharding_spec());
  }
  result_shapes_ = std::move(shapes);
  for (size_t k = 0; k < description_.written.size(); ++k) {
    const Input& input = inputs[description_.written[k]];
    input.base->SetXlaData(results[k]);
    data_[description_.written[k]] = results[k];
    UpdateViews(input.storage);
  }
  results.erase(results.begin(), results.begin() + description_.written.size());
  return results;
}

std::vector<at::Tensor> Program::Run(const std::vector<at::Tensor>& arguments,
                                     StartFunction start) {
  CheckCount(arguments);
  std::vector<Found> state;
  state.reserve(state_.size());
  for (const StateTensor& expected : state_) {
    state.emplace_back().tensor = at::Tensor(expected.tensor.lock());
  }
  const std::vector<Input> inputs = Gather(arguments, state);
  ReleaseGradients(arguments, state);
  return Run(inputs, start);
}

std::optional<std::vector<at::Tensor>> Program::RunUnlessCopied(
    const std::vector<at::Tensor>& arguments) {
  if (!ArgumentsToCopy(arguments).empty()) return std::nullopt;
  return Run(arguments);
}

std::optional<std::vector<at::Tensor>> Program::RunIfMatches(
    const std::vector<at::Tensor>& arguments, bool here) {
  std::vector<Found> state;
  if (!FindState(arguments, &state)) return std::nullopt;
  const WithoutGil without_gil;
  const std::vector<Input> inputs = Gather(arguments, state);
  if (!HasCachedShardings(inputs)) return std::nullopt;
  ReleaseGradients(arguments, state);
  return Run(inputs, here ? &graph::StartHere : &graph::Start);
}

std::vector<at::Tensor> Program::Run(const std::vector<Input>& inputs,
                                     StartFunction start) {
  std::vector<torch::lazy::BackendDataPtr> results;
  if (computation_ == nullptr && !IsEmpty()) {
    throw std::runtime_error(description_.name +
                             ": its program was not compiled");
  }
  if (computation_ != nullptr) {
    // Another thread's torch_xla.sync() reads the data that is replaced here.
    const TensorLock lock;
    const std::lock_guard<std::mutex> guard(*run_mutex_);
    const bool is_first = result_shapes_.empty();
    std::optional<LaunchTicket> ticket(
        Prepare(inputs, !is_first && start == &graph::Start));
    if ((is_first && computation_->is_sharded) || ReportsExecutions()) {
      ticket.reset();  // upstream locks the device
      results = StartSharded(inputs);
    } else {
      results = Start(std::move(*ticket), inputs, start);
    }
  }
  if (description_.ends_step) {
    torch_xla::XLAGraphExecutor::Get()->MarkStep(device_,
                                                 /*reset_scope=*/false);
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(results.size());
  for (size_t k = 0; k < results.size(); ++k) {
    outputs.push_back(
        torch_xla::bridge::AtenFromXlaTensor(torch_xla::XLATensor::Create(
            std::move(results[k]), description_.outputs[k].dtype)));
  }
  return outputs;
}

}  // namespace torch_xla_ext::graph
