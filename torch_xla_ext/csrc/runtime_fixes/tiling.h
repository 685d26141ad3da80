// Describes how a tensor is divided among devices.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_TILING_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_TILING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla_ext {

using Sizes = std::vector<uint64_t>;

// The coordinates of the element at `index` of an array, in row-major order.
Sizes Coordinates(uint64_t index, const Sizes& sizes);
uint64_t IndexOf(const Sizes& coordinates, const Sizes& sizes);

// An array of devices, whose dimensions are the tensor's and one more, along
// which devices have the same shard.
struct Tiling {
  Sizes sizes;    // of the array
  Sizes devices;  // in row-major order

  size_t rank() const { return sizes.size() - 1; }
  bool IsDivided() const;
  // Whether device numbers rise along each dimension.
  bool IsSorted() const;
  // A device's index along a dimension, by the number of the device.
  Sizes IndicesAlong(size_t dimension) const;
  Tiling Transposed(const Sizes& permutation) const;
  // The tiling without the division of these dimensions.
  Tiling Gathered(const std::vector<bool>& is_gathered) const;
  // An xla::OpSharding.
  std::string Serialize() const;
};

// The tiling of an xla::OpSharding; nothing if it has none, is for several
// tensors, or has subgroup types.
std::optional<Tiling> TilingOf(std::string_view serialized);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_TILING_H_
