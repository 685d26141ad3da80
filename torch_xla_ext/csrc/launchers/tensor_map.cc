#include "torch_xla_ext/csrc/launchers/tensor_map.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace torch_xla_ext {
namespace {

constexpr uint32_t kMostMapDimensions = 5;

// Reads numbers from the beginning of a description.
class DescriptionReader {
 public:
  explicit DescriptionReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Next() {
    T value;
    if (bytes_.size() < sizeof value) Refuse();
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }

  void CheckEnd() const {
    if (!bytes_.empty()) Refuse();
  }

  [[noreturn]] static void Refuse() {
    throw std::invalid_argument(
        "attribute parameters: a tensor map's description is malformed");
  }

 private:
  std::string_view bytes_;
};

}  // namespace

CUtensorMap MakeTensorMap(const CudaDriver& driver,
                          std::string_view description, void* address) {
  DescriptionReader reader(description);
  const auto type = static_cast<CUtensorMapDataType>(reader.Next<uint32_t>());
  const auto swizzle = static_cast<CUtensorMapSwizzle>(reader.Next<uint32_t>());
  const auto fill =
      static_cast<CUtensorMapFloatOOBfill>(reader.Next<uint32_t>());
  const auto rank = reader.Next<uint32_t>();
  if (rank < 1 || rank > kMostMapDimensions) DescriptionReader::Refuse();
  // The innermost dimension comes first; its stride is the element's size, and
  // is not in the description.
  std::array<cuuint32_t, kMostMapDimensions> box = {}, element_strides = {};
  std::array<cuuint64_t, kMostMapDimensions> sizes = {}, strides = {};
  for (uint32_t i = 0; i < rank; ++i) box[i] = reader.Next<cuuint32_t>();
  for (uint32_t i = 0; i < rank; ++i) sizes[i] = reader.Next<cuuint64_t>();
  for (uint32_t i = 0; i + 1 < rank; ++i) {
    strides[i] = reader.Next<cuuint64_t>();
  }
  reader.CheckEnd();
  element_strides.fill(1);
  CUtensorMap map = {};
  driver.Check(
      driver.TensorMapEncodeTiled(
          &map, type, rank, address, sizes.data(), strides.data(), box.data(),
          element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
          CU_TENSOR_MAP_L2_PROMOTION_L2_128B, fill),
      "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace torch_xla_ext
