// Checks that several kernels' launch functions share.
#ifndef KERNELS_COMMON_CHECKS_H_
#define KERNELS_COMMON_CHECKS_H_

#include <cstdint>

#include "torch_xla_ext/status.h"

namespace torch_xla_ext {

// The kernels load and store 16 bytes at once. XLA aligns its allocations, but
// may pass a slice of one.
inline Status CheckAligned(const char* argument, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 16 == 0) return Status::Ok();
  return Status::Error(
      argument, ": expected an address that is a multiple of 16 but got ",
      data);
}

// lse has one row per query row if it is requested, otherwise none.
inline Status CheckLseRows(int64_t rows, int64_t query_rows) {
  if (rows == 0 || rows == query_rows) return Status::Ok();
  return Status::Error("result 1 (lse): expected dimension 0 to be 0 or ",
                       query_rows, " but got ", rows);
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_CHECKS_H_
