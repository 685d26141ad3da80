// Host kernels that the tests register from Python, like kernels that a user
// would write, compile with `g++ -shared` and load with ctypes. They use API
// version 3 of the untyped ABI; a tuple result arrives as an array of buffers.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "xla/service/custom_call_status.h"

namespace {

void Echo(const char* opaque, size_t opaque_len, int64_t* out) {
  out[0] = static_cast<int64_t>(opaque_len);
  for (size_t i = 0; i < opaque_len && i < 15; ++i) {
    out[i + 1] = static_cast<unsigned char>(opaque[i]);
  }
}

int64_t ReadCount(const char* opaque) {
  int64_t count;
  std::memcpy(&count, opaque, sizeof(count));
  return count;
}

}  // namespace

extern "C" {

// Result s64[16]: the length of the payload and its first 15 bytes.
void TestEcho(void* out, const void** in, const char* opaque, size_t opaque_len,
              XlaCustomCallStatus* status) {
  Echo(opaque, opaque_len, static_cast<int64_t**>(out)[0]);
}

// Like TestEcho, but the single result is not a tuple.
void TestEchoSingle(void* out, const void** in, const char* opaque,
                    size_t opaque_len, XlaCustomCallStatus* status) {
  Echo(opaque, opaque_len, static_cast<int64_t*>(out));
}

// Copies f32 operand 0 into the result, in buffer order. Payload: the number of
// elements, i64.
void TestCopy(void* out, const void** in, const char* opaque, size_t opaque_len,
              XlaCustomCallStatus* status) {
  std::memcpy(static_cast<void**>(out)[0], in[0],
              ReadCount(opaque) * sizeof(float));
}

// Three results of f32 operands a and b: a + b, a - b, and a copy of a in s32.
// Payload: the number of elements, i64.
void TestSumDifferenceRound(void* out, const void** in, const char* opaque,
                            size_t opaque_len, XlaCustomCallStatus* status) {
  const float* a = static_cast<const float*>(in[0]);
  const float* b = static_cast<const float*>(in[1]);
  void** results = static_cast<void**>(out);
  for (int64_t i = 0; i < ReadCount(opaque); ++i) {
    static_cast<float*>(results[0])[i] = a[i] + b[i];
    static_cast<float*>(results[1])[i] = a[i] - b[i];
    static_cast<int32_t*>(results[2])[i] = static_cast<int32_t>(a[i]);
  }
}

// f32[rows, columns] times f32[columns]; the payload is both sizes, as int64.
void TestMatrixVector(void* out, const void** in, const char* opaque,
                      size_t opaque_len, XlaCustomCallStatus*) {
  int64_t sizes[2] = {};
  std::memcpy(sizes, opaque, std::min(opaque_len, sizeof(sizes)));
  const auto* matrix = static_cast<const float*>(in[0]);
  const auto* vector = static_cast<const float*>(in[1]);
  auto* result = static_cast<float*>(static_cast<void**>(out)[0]);
  for (int64_t row = 0; row < sizes[0]; ++row) {
    result[row] = 0;
    for (int64_t i = 0; i < sizes[1]; ++i) {
      result[row] += matrix[row * sizes[1] + i] * vector[i];
    }
  }
}

// Counts its calls; the result, s64[1], is the count.
void TestCount(void* out, const void** in, const char* opaque,
               size_t opaque_len, XlaCustomCallStatus* status) {
  static int64_t calls = 0;
  static_cast<int64_t**>(out)[0][0] = ++calls;
}

// Waits forever, like a kernel that waits for data from a lost process.
void TestForever(void* out, const void** in, const char* opaque,
                 size_t opaque_len, XlaCustomCallStatus* status) {
  while (true) pause();
}

// Reports a failure.
void TestFail(void* out, const void** in, const char* opaque, size_t opaque_len,
              XlaCustomCallStatus* status) {
  constexpr char kText[] = "TestFail: operand 1 (b): expected 3 elements";
  XlaCustomCallStatusSetFailure(status, kText, sizeof(kText) - 1);
}

}  // extern "C"
