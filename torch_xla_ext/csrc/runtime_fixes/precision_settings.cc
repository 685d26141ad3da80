#include "torch_xla_ext/csrc/runtime_fixes/precision_settings.h"

#include <ATen/Context.h>

#include <cstdint>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace {

constexpr uint64_t kDefault = 0, kHighest = 2;  // of PrecisionConfig::Precision

}  // namespace

Precisions PrecisionSettings() {
  const uint64_t precision = torch_xla::XlaHelpers::mat_mul_precision();
  if (precision != kDefault) return {precision, precision, precision};
  const at::Context& pytorch = at::globalContext();
  return {pytorch.allowTF32CuBLAS() ? kDefault : kHighest,
          pytorch.allowTF32CuDNN() ? kDefault : kHighest, kDefault};
}

}  // namespace torch_xla_ext
