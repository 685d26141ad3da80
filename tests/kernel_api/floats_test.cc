// Compares include/torch_xla_ext/floats.h with torch's types.
#include "torch_xla_ext/floats.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

int failures = 0;

template <typename Ours, typename Theirs>
void ExpectEqual(const char* name, uint32_t pattern) {
  float value;
  std::memcpy(&value, &pattern, sizeof(value));
  const uint16_t ours = Ours(value).bits, theirs = Theirs(value).x;
  const bool nan = value != value;
  // Both implementations only guarantee that NaN stays NaN.
  const bool equal =
      nan ? float(Ours(value)) != float(Ours(value)) : ours == theirs;
  if (!equal && ++failures < 20) {
    std::printf("%s(%a): %04x, expected %04x\n", name, value, ours, theirs);
  }
}

template <typename Ours, typename Theirs>
void CompareAll(const char* name) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    Ours ours;
    ours.bits = static_cast<uint16_t>(bits);
    const float expected =
        Theirs(static_cast<uint16_t>(bits), Theirs::from_bits());
    const float value = ours;
    const bool equal =
        expected != expected ? value != value : value == expected;
    if (!equal && ++failures < 20) {
      std::printf("float(%s %04x): %a, expected %a\n", name, bits, value,
                  expected);
    }
    // The float itself, its neighbours, and the midpoint between two values.
    uint32_t pattern;
    std::memcpy(&pattern, &expected, sizeof(pattern));
    for (const uint32_t middle : {0u, 1u << 12, 1u << 15}) {
      for (int offset = -2; offset <= 2; ++offset) {
        ExpectEqual<Ours, Theirs>(name, pattern + middle + offset);
      }
    }
  }
  // All exponents, with a step that is prime.
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += 977) {
    ExpectEqual<Ours, Theirs>(name, static_cast<uint32_t>(pattern));
  }
}

}  // namespace

int main() {
  CompareAll<torch_xla_ext::Half, c10::Half>("Half");
  CompareAll<torch_xla_ext::BFloat16, c10::BFloat16>("BFloat16");
  std::printf("%d differences\n", failures);
  return failures == 0 ? 0 : 1;
}
