// TestGather, whose signature uses every feature, and TestOptions, whose
// parameters are of every type.
#ifndef TESTS_KERNEL_API_GATHER_H_
#define TESTS_KERNEL_API_GATHER_H_

#include <string_view>
#include <vector>

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

struct RangeParams {
  int32_t low;
  std::string_view unit;
  static constexpr auto Fields() {
    using torch_xla_ext::Field;
    return torch_xla_ext::MakeFields(Field("low", &RangeParams::low, 0, 9),
                                     Field("unit", &RangeParams::unit));
  }
};

struct OptionsParams {
  std::string_view mode;
  std::vector<int64_t> shifts;
  bool flag;
  RangeParams range;
  std::vector<double> weights;
  std::vector<float> halves;
  std::vector<int32_t> steps;
  static constexpr auto Fields() {
    using torch_xla_ext::Field;
    return torch_xla_ext::MakeFields(Field("mode", &OptionsParams::mode),
                                     Field("shifts", &OptionsParams::shifts),
                                     Field("flag", &OptionsParams::flag),
                                     Field("range", &OptionsParams::range),
                                     Field("weights", &OptionsParams::weights),
                                     Field("halves", &OptionsParams::halves),
                                     Field("steps", &OptionsParams::steps));
  }
};

inline constexpr torch_xla_ext::Signature kOptions =
    torch_xla_ext::ParseSignature("TestOptions(x: F64[n]) -> (text: U8[size])");

#endif  // TESTS_KERNEL_API_GATHER_H_
