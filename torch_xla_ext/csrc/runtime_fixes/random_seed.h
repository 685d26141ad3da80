// torch.manual_seed sets the seed of all devices in PyTorch. In upstream, XLA's
// devices keep theirs.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_SEED_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_SEED_H_

#include <cstdint>

namespace torch_xla_ext {

// Sets the seed of each device of this process: now, or when torch_xla makes
// its client if there is none.
void SeedAllDevices(uint64_t seed);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_SEED_H_
