// Lets torch.manual_seed set the seed of XLA devices, too, which upstream
// omits.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_SEED_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_SEED_H_

#include <cstdint>

namespace torch_xla_ext {

// Sets the seed of each device of this process: now, or, without a client, when
// torch_xla creates it.
void SeedAllDevices(uint64_t seed);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_RANDOM_SEED_H_
