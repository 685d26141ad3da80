#include "torch_xla_ext/csrc/runtime_fixes/random_state.h"

#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/utils/pybind.h>

#include <mutex>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;
using torch_xla::XLAGraphExecutor;

// Reach what torch's classes show to their subclasses only.
struct Executor : torch::lazy::LazyGraphExecutor {
  using torch::lazy::LazyGraphExecutor::DeviceContextArena;
};
struct Arena : Executor::DeviceContextArena {
  using Context = DeviceContext;

  static Context* Of(const torch::lazy::BackendDevice& device) {
    return (XLAGraphExecutor::DeviceContextArena::Get()
                ->*(&Arena::GetDeviceContext))(device);
  }
};

class RandomState {
 public:
  // The current device's, now.
  RandomState() : device_(torch_xla::bridge::GetCurrentDevice()) {
    Arena::Context* const context = Arena::Of(device_);
    bool has_value;
    {
      std::lock_guard<std::mutex> lock(context->lock);
      has_value = context->seed_ir_value;
    }
    if (!has_value) XLAGraphExecutor::Get()->GetBaseSeedData(device_);
    std::lock_guard<std::mutex> lock(context->lock);
    seed_ = context->seed;
    running_seed_ = context->running_seed;
    value_ = context->seed_ir_value;
  }

  at::Tensor Seed() const {
    return torch_xla::bridge::AtenFromXlaTensor(torch_xla::XLATensor::Create(
        value_, device_, at::kLong, /*delay_eager_execution=*/false));
  }

  // Makes the next random numbers those that followed this state. `seed` is
  // this state's, perhaps behind a barrier.
  void Restore(const at::Tensor& seed) const {
    SetTo(torch_xla::bridge::TryGetXlaTensor(seed)->GetIrValue());
  }
  void RestoreValue() const { SetTo(value_); }

 private:
  void SetTo(torch::lazy::Value value) const {
    Arena::Context* const context = Arena::Of(device_);
    std::lock_guard<std::mutex> lock(context->lock);
    context->seed = seed_;
    context->running_seed = running_seed_;
    context->seed_ir_value = std::move(value);
  }

  torch::lazy::BackendDevice device_;
  uint64_t seed_;          // from which the step began
  uint64_t running_seed_;  // what `value_` will be
  torch::lazy::Value value_;
};

}  // namespace

void DefineRandomState(py::module_& module) {
  py::class_<RandomState>(module, "_XlaRandomState")
      .def(py::init<>())
      .def("seed", &RandomState::Seed)
      .def("restore", &RandomState::RestoreValue)
      .def("restore", &RandomState::Restore, py::arg("seed"));
}

}  // namespace torch_xla_ext
