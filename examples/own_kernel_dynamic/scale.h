// XlaGpuScale: out = x * factor, for any shape.
#ifndef SCALE_H_
#define SCALE_H_

#include "torch_xla_ext/kernel.h"

struct ScaleParams {
  double factor;
  static constexpr auto Fields() {
    return torch_xla_ext::MakeFields(
        torch_xla_ext::Field("factor", &ScaleParams::factor));
  }
};

inline constexpr torch_xla_ext::Signature kScale =
    torch_xla_ext::ParseSignature(
        "XlaGpuScale(x: F32[*shape]) -> (out: F32[*shape])");

#endif  // SCALE_H_
