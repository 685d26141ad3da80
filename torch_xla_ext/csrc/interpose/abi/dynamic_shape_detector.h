// The class behind `torch_xla.compile(max_different_graphs=…)`, as compiled
// into the upstream binary of torch_xla 2.8.1.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_DYNAMIC_SHAPE_DETECTOR_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_DYNAMIC_SHAPE_DETECTOR_H_

#include <cstddef>
#include <string>
#include <unordered_map>

#include "torch_xla_ext/csrc/interpose/abi/layout.h"

namespace torch_xla {

// The values of the map have another type upstream, but an empty map is the
// same with values of any type. The destructor, which is upstream's, destroys
// the values.
class DynamicShapeDetector {
 public:
  static DynamicShapeDetector* Get();
  DynamicShapeDetector() {}
  ~DynamicShapeDetector();
  DynamicShapeDetector(const DynamicShapeDetector&) = delete;

 private:
  friend struct DynamicShapeDetectorLayout;
  struct TrieBuilder {
    void* node = nullptr;
    size_t matched = 0;
  };

  union {
    std::unordered_map<std::string, int> session_infos_{};
  };
  void* current_session_ = nullptr;
  TrieBuilder builder_;
};
struct DynamicShapeDetectorLayout {
  static_assert(offsetof(DynamicShapeDetector, current_session_) ==
                torch_xla_ext::layout::kCurrentSessionOffset);
  static_assert(offsetof(DynamicShapeDetector, builder_) ==
                torch_xla_ext::layout::kTrieBuilderOffset);
};

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_ABI_DYNAMIC_SHAPE_DETECTOR_H_
