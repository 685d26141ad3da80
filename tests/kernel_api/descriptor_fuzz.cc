// A fuzz target of the parser of descriptors, in libFuzzer's form:
//
//   clang++ -std=c++17 -fsanitize=fuzzer,address,undefined -I…
//       tests/kernel_api/descriptor_fuzz.cc -o fuzz
//   ./fuzz -runs=1000000
//
// With FUZZ_DRIVER it has a main of its own, which mutates valid descriptors
// from a fixed seed: what CI runs, with g++ and the same sanitizers. An input
// that crashed either goes into kSeeds.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/kernel_api/gather.h"

namespace {

using torch_xla_ext::Descriptor;
using torch_xla_ext::Status;
namespace internal = torch_xla_ext::internal;

uint64_t Hash() {
  static const uint64_t hash = torch_xla_ext::SchemaHash(
      torch_xla_ext::SchemaText<GatherParams>(kGather));
  return hash;
}

void Check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The sanitizer finds a read of one byte beyond a block of exactly this size.
  const std::unique_ptr<char[]> copy(new char[size]);
  if (size != 0) std::memcpy(copy.get(), data, size);
  Descriptor descriptor;
  const Status status = torch_xla_ext::ParseDescriptor(
      kGather, Hash(), internal::PackedSize<GatherParams>(), copy.get(), size,
      &descriptor);
  Check(status.ok() == status.message().empty(), "an error has a text");
  if (!status.ok()) return 0;
  Check(descriptor.views.size() == 6, "all arrays are there");
  Check(descriptor.params >= copy.get() &&
            descriptor.params + internal::PackedSize<GatherParams>() ==
                copy.get() + size,
        "the parameters are the end of the payload");
  for (const auto& view : descriptor.views) {
    for (int i = 0; i < view.rank; ++i) {
      Check(view.dims[i] >= 0, "no dimension is negative");
    }
  }
  GatherParams params{};
  if (internal::UnpackParams(descriptor.params, &params).ok()) {
    (void)internal::CheckParams(params);
  }
  return 0;
}

#ifdef FUZZ_DRIVER

namespace {

void Append(std::string* bytes, const void* value, size_t size) {
  bytes->append(static_cast<const char*>(value), size);
}

void AppendArray(std::string* bytes, uint8_t dtype,
                 const std::vector<int64_t>& dims) {
  bytes->push_back(static_cast<char>(dtype));
  bytes->push_back(static_cast<char>(dims.size()));
  Append(bytes, dims.data(), dims.size() * sizeof(int64_t));
}

// A valid descriptor, with or without the optional operands.
std::string Valid(bool optional, const std::vector<int64_t>& row) {
  std::string bytes = {1, 1, 4, 2};
  const uint32_t params_size = internal::PackedSize<GatherParams>();
  const uint64_t hash = Hash();
  Append(&bytes, &params_size, sizeof(params_size));
  Append(&bytes, &hash, sizeof(hash));
  std::vector<int64_t> table = {5};
  table.insert(table.end(), row.begin(), row.end());
  AppendArray(&bytes, 11, table);
  AppendArray(&bytes, 4, {3});
  AppendArray(&bytes, optional ? 11 : 0, {});
  AppendArray(&bytes, optional ? 6 : 0,
              optional ? std::vector<int64_t>{2} : std::vector<int64_t>{});
  table[0] = 3;
  AppendArray(&bytes, 11, table);
  AppendArray(&bytes, 6, {64});
  return bytes + std::string(params_size, '\1');
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> kSeeds = {
      "", Valid(false, {}), Valid(true, {2, 3}), Valid(true, {0, 7, 1, 1})};
  const long runs = argc > 1 ? std::atol(argv[1]) : 20000;
  std::mt19937_64 random(1);
  const auto feed = [](const std::string& input) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()),
                           input.size());
  };
  for (const std::string& seed : kSeeds) feed(seed);
  const int64_t kNumbers[] = {-1, 0, 1, 255, INT32_MAX, INT64_MAX, INT64_MIN};
  for (long run = 0; run < runs; ++run) {
    std::string input = kSeeds[random() % kSeeds.size()];
    for (int edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = input.empty() ? 0 : random() % input.size();
      switch (random() % 5) {
        case 0:
          if (!input.empty()) input[at] ^= static_cast<char>(1 << random() % 8);
          break;
        case 1:
          input.resize(at);
          break;
        case 2:
          input.insert(at, 1 + random() % 16, static_cast<char>(random()));
          break;
        case 3:
          input.erase(at, random() % 9);
          break;
        default:
          if (input.size() >= at + 8) {
            std::memcpy(&input[at], &kNumbers[random() % 7], 8);
          }
      }
    }
    feed(input);
  }
  std::printf("%ld inputs\n", runs);
}

#endif  // FUZZ_DRIVER
