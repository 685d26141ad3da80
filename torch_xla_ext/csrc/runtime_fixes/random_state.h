// The state of a device's random number generator, as a value in the program.
//
// xm.get_rng_state() returns a number that the host computes. A program that
// sets this number has it as a further input, which a captured step would
// mistake for the seed that changes with each step.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_STATE_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_STATE_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/backend/backend_device.h>
#include <torch/csrc/lazy/core/ir.h>

#include <cstdint>

namespace torch_xla_ext {

class RandomState {
 public:
  // The current state of the current device.
  RandomState();

  at::Tensor Seed() const;

  // Restores this state for the next random numbers. `seed` is this state's
  // seed, perhaps after an optimization barrier.
  void Restore(const at::Tensor& seed) const;
  void RestoreValue() const;

 private:
  void SetTo(torch::lazy::Value value) const;

  torch::lazy::BackendDevice device_;
  uint64_t seed_;          // the seed with which the step began
  uint64_t running_seed_;  // the number that `value_` will have
  torch::lazy::Value value_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_STATE_H_
