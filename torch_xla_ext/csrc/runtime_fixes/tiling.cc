#include "torch_xla_ext/csrc/runtime_fixes/tiling.h"

#include <functional>
#include <numeric>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

uint64_t Product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), uint64_t{1},
                         std::multiplies<>());
}

}  // namespace

Sizes Coordinates(uint64_t index, const Sizes& sizes) {
  Sizes coordinates(sizes.size());
  for (size_t i = sizes.size(); i-- > 0; index /= sizes[i]) {
    coordinates[i] = index % sizes[i];
  }
  return coordinates;
}

uint64_t IndexOf(const Sizes& coordinates, const Sizes& sizes) {
  uint64_t index = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    index = index * sizes[i] + coordinates[i];
  }
  return index;
}

bool Tiling::IsDivided() const { return Product(sizes) > sizes.back(); }

bool Tiling::IsSorted() const {
  for (size_t i = 0; i < devices.size(); ++i) {
    Sizes at = Coordinates(i, sizes);
    for (uint64_t& coordinate : at) {
      if (coordinate == 0) continue;
      --coordinate;
      if (devices[IndexOf(at, sizes)] > devices[i]) return false;
      ++coordinate;
    }
  }
  return true;
}

Sizes Tiling::IndicesAlong(size_t dimension) const {
  Sizes indices(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    indices[devices[i]] = Coordinates(i, sizes)[dimension];
  }
  return indices;
}

Tiling Tiling::Transposed(const Sizes& permutation) const {
  Tiling result;
  for (const uint64_t from : permutation) {
    result.sizes.push_back(sizes[from]);
  }
  result.sizes.push_back(sizes.back());
  for (size_t i = 0; i < devices.size(); ++i) {
    const Sizes to = Coordinates(i, result.sizes);
    Sizes from(to.size(), to.back());
    for (size_t j = 0; j < permutation.size(); ++j) {
      from[permutation[j]] = to[j];
    }
    result.devices.push_back(devices[IndexOf(from, sizes)]);
  }
  return result;
}

Tiling Tiling::Gathered(const std::vector<bool>& is_gathered) const {
  Tiling result;
  Sizes order;  // of the array's dimensions: kept ones come first
  for (const bool moves : {false, true}) {
    for (size_t i = 0; i < rank(); ++i) {
      if (is_gathered[i] == moves) order.push_back(i);
    }
  }
  order.push_back(rank());
  result.sizes.assign(sizes.size(), 1);
  Sizes ordered;
  for (const uint64_t dimension : order) {
    const bool moves = dimension == rank() || is_gathered[dimension];
    result.sizes[moves ? rank() : dimension] *= sizes[dimension];
    ordered.push_back(sizes[dimension]);
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    const Sizes at = Coordinates(i, ordered);
    Sizes from(at.size());
    for (size_t j = 0; j < order.size(); ++j) from[order[j]] = at[j];
    result.devices.push_back(devices[IndexOf(from, sizes)]);
  }
  return result;
}

std::string Tiling::Serialize() const {
  if (!IsDivided()) return "";  // replicated
  ProtobufMessage message;
  message.SetNumber(hlo::sharding::kType, hlo::kOther);
  message.SetNumbers(hlo::sharding::kTileAssignmentDimensions, sizes);
  message.SetNumbers(hlo::sharding::kTileAssignmentDevices, devices);
  message.SetNumber(hlo::sharding::kReplicateOnLastTileDim, 1);
  return message.Serialize();
}

std::optional<Tiling> TilingOf(std::string_view serialized) {
  const ProtobufMessage sharding(serialized);
  Tiling tiling;
  tiling.sizes = sharding.Numbers(hlo::sharding::kTileAssignmentDimensions);
  if (sharding.Number(hlo::sharding::kType) != hlo::kOther ||
      tiling.sizes.empty() || sharding.Has(hlo::sharding::kLastTileDims)) {
    return std::nullopt;
  }
  if (sharding.Number(hlo::sharding::kReplicateOnLastTileDim) == 0) {
    tiling.sizes.push_back(1);
  }
  tiling.devices = sharding.Numbers(hlo::sharding::kTileAssignmentDevices);
  const Sizes reshaped =
      sharding.Numbers(hlo::sharding::kIotaReshapeDimensions);
  if (!reshaped.empty()) {
    const Sizes permutation =
        sharding.Numbers(hlo::sharding::kIotaTransposePermutation);
    Tiling iota{reshaped, Sizes(Product(reshaped))};
    std::iota(iota.devices.begin(), iota.devices.end(), 0);
    iota.sizes.push_back(1);
    tiling.devices =
        (permutation.empty() ? iota : iota.Transposed(permutation)).devices;
  }
  if (tiling.devices.size() != Product(tiling.sizes)) return std::nullopt;
  return tiling;
}

}  // namespace torch_xla_ext
