// A libFuzzer target for the parser of untyped payloads:
//
//   clang++ -std=c++17 -fsanitize=fuzzer,address,undefined -I…
//       tests/kernel_api/untyped_payload_fuzz.cc -o fuzz
//   ./fuzz -runs=1000000 tests/kernel_api/untyped_payload_corpus/*
//
// With FUZZ_DRIVER it has its own main, which mutates the files of the corpus
// from a fixed seed. CI runs that, with g++ and the same sanitizers.
// untyped_payload_corpus/README.md says how to run it for long.
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

using torch_xla_ext::NoParams;
using torch_xla_ext::Signature;
using torch_xla_ext::Status;
using torch_xla_ext::internal::UntypedPayload;
namespace internal = torch_xla_ext::internal;

// The signature of the wheel's kernel whose untyped payloads are in the corpus.
inline constexpr Signature kAdd = torch_xla_ext::ParseSignature(
    "XlaGpuSimpleAdd(a: T[*shape], b: T[*shape]) -> (out: T[*shape]) "
    "where T: F16 | BF16 | F32 | F64 | S32 | S64");

void SaveInput();

void Check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  SaveInput();
  std::abort();
}

template <typename Params>
void Parse(const Signature& signature, const char* data, size_t size) {
  static const uint64_t hash =
      torch_xla_ext::SchemaHash(torch_xla_ext::SchemaText<Params>(signature));
  const size_t params_size = internal::PackedSize<Params>();
  UntypedPayload payload;
  const Status status = torch_xla_ext::internal::ParseUntypedPayload(
      signature, hash, params_size, data, size, &payload);
  Check(status.ok() == status.message().empty(), "an error has a text");
  if (!status.ok()) return;
  Check(payload.views.size() == static_cast<size_t>(signature.num_arguments()),
        "all arrays are there");
  Check(params_size == internal::kVariableSize ||
            params_size == payload.params_size,
        "parameters of a fixed size have that size");
  Check(payload.params >= data &&
            payload.params + payload.params_size == data + size,
        "the parameters are the end of the payload");
  for (const auto& view : payload.views) {
    for (int i = 0; i < view.rank; ++i) {
      Check(view.dims[i] >= 0, "no dimension is negative");
    }
  }
  Params params{};
  if (internal::UnpackParams(payload.params, payload.params_size, &params)
          .ok()) {
    (void)internal::CheckParams(params);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Copied to a block of exactly this size, so that the sanitizer finds a read
  // of even one byte beyond it.
  const std::unique_ptr<char[]> copy(new char[size]);
  if (size != 0) std::memcpy(copy.get(), data, size);
  Parse<GatherParams>(kGather, copy.get(), size);
  Parse<OptionsParams>(kOptions, copy.get(), size);
  Parse<NoParams>(kAdd, copy.get(), size);
  return 0;
}

#ifndef FUZZ_DRIVER

namespace {
void SaveInput() {}  // libFuzzer saves the input itself
}  // namespace

#else

#include <sanitizer/common_interface_defs.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace {

std::string current_input;

// In Bazel's folder for a test's outputs, or else in the current folder.
void SaveInput() {
  const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string path = std::string(folder ? folder : ".") + "/crasher.bin";
  std::ofstream(path, std::ios::binary) << current_input;
  std::fprintf(stderr, "the input is in %s\n", path.c_str());
}

void Feed(const std::string& input) {
  current_input = input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()),
                         input.size());
}

std::string Mutated(std::string input, std::mt19937_64* random) {
  const int64_t kNumbers[] = {-1, 0, 1, 255, INT32_MAX, INT64_MAX, INT64_MIN};
  for (int edits = 1 + (*random)() % 3; edits > 0; --edits) {
    const size_t at = input.empty() ? 0 : (*random)() % input.size();
    switch ((*random)() % 5) {
      case 0:
        if (!input.empty()) {
          input[at] ^= static_cast<char>(1 << (*random)() % 8);
        }
        break;
      case 1:
        input.resize(at);
        break;
      case 2:
        input.insert(at, 1 + (*random)() % 16, static_cast<char>((*random)()));
        break;
      case 3:
        input.erase(at, (*random)() % 9);
        break;
      default:
        if (input.size() >= at + 8) {
          std::memcpy(&input[at], &kNumbers[(*random)() % 7], 8);
        }
    }
  }
  return input;
}

}  // namespace

// untyped_payload_fuzz RUNS FOLDER...
int main(int argc, char** argv) {
  __sanitizer_set_death_callback(&SaveInput);
  std::vector<std::string> seeds = {""};
  for (int i = 2; i < argc; ++i) {
    for (const auto& file : std::filesystem::directory_iterator(argv[i])) {
      if (file.path().extension() != ".bin") continue;
      std::ifstream stream(file.path(), std::ios::binary);
      seeds.emplace_back(std::istreambuf_iterator<char>(stream),
                         std::istreambuf_iterator<char>());
    }
  }
  if (argc < 3 || seeds.size() == 1) {
    std::fprintf(stderr,
                 "usage: untyped_payload_fuzz RUNS FOLDER..., with seeds\n");
    return 2;
  }
  const long runs = std::atol(argv[1]);
  std::mt19937_64 random(1);
  for (const std::string& seed : seeds) Feed(seed);
  for (long run = 0; run < runs; ++run) {
    Feed(Mutated(seeds[random() % seeds.size()], &random));
  }
  std::printf("%ld inputs from %zu seeds\n", runs, seeds.size());
}

#endif  // FUZZ_DRIVER
