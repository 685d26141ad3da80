// TestGather, whose signature uses every feature.
#ifndef TESTS_KERNEL_API_GATHER_H_
#define TESTS_KERNEL_API_GATHER_H_

#include "torch_xla_ext/kernel.h"

struct GatherParams {
  int64_t window;
  int32_t offset;
  double factor;
  float bias;
  bool negate;
  static constexpr auto Fields() {
    using torch_xla_ext::Field;
    return torch_xla_ext::MakeFields(
        Field("window", &GatherParams::window, 1, 4096),
        Field("offset", &GatherParams::offset),
        Field("factor", &GatherParams::factor, -2.5, 1e6),
        Field("bias", &GatherParams::bias),
        Field("negate", &GatherParams::negate));
  }
};

inline constexpr torch_xla_ext::Signature kGather =
    torch_xla_ext::ParseSignature(
        "TestGather(table: T[rows, *row], index: S32[n], scale?: F32[], "
        "pair?: U8[2]) -> (out: T[n, *row], workspace: U8[bytes]) "
        "where T: F32 | BF16 | F8E4M3FN");

#endif  // TESTS_KERNEL_API_GATHER_H_
