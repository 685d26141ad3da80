// XlaGpuAllReduce: the sum of a matrix over the devices of a process, each of
// which calls the kernel with its own (a one-shot all-reduce).
//
// A device writes its matrix into the workspaces of all devices, sets a flag
// there, waits for the flags in its own workspace, and adds the matrices there:
// one exchange, where NCCL's algorithms need several. That is fastest for up to
// some hundred kilobytes. Sums are computed in float32, in the order of ranks,
// so all devices receive the same bits.
//
// XlaGpuAllReduceRmsNorm adds a residual to the sum and normalizes it, in the
// same kernel:
//   sum = round(sum over ranks of x) + residual
//   normed = round(sum / sqrt(mean of a row of sum^2 + epsilon)) * weight
// with sum in float32 until it is stored, as in vLLM's RMSNorm.
//
// A workspace is memory that all devices of the process can write to. It is
// zero at first, must outlive all programs that use it, and serves only calls
// of these two kernels. These must run one after another, in the same order on
// all devices.
#ifndef KERNELS_ALL_REDUCE_ALL_REDUCE_H_
#define KERNELS_ALL_REDUCE_ALL_REDUCE_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::all_reduce {

// `peers` contains the device's rank, then the workspaces' addresses by rank.
inline constexpr Signature kAllReduce = ParseSignature(
    "XlaGpuAllReduce(x: T[num_rows, num_columns], peers: S64[one, slots]) -> "
    "(out: T[num_rows, num_columns]) where T: F16 | BF16 | F32");

inline constexpr Signature kAllReduceRmsNorm = ParseSignature(
    "XlaGpuAllReduceRmsNorm(x: T[num_rows, num_columns], "
    "residual: T[num_rows, num_columns], weight: T[num_columns], "
    "peers: S64[one, slots]) -> (normed: T[num_rows, num_columns], "
    "sum: T[num_rows, num_columns]) where T: F16 | BF16 | F32");

struct AllReduceRmsNormParams {
  double epsilon;

  static constexpr auto Fields() {
    return MakeFields(Field("epsilon", &AllReduceRmsNormParams::epsilon));
  }
};

inline constexpr int kMaxRanks = 8;

// Blocks of threads work independently: block i of a device exchanges its part
// of the matrix with the blocks i of the other devices, in rounds of at most
// kBlockBytes. Rounds alternate between two buffers. That is safe: a device
// that writes round n + 2 has seen the flags of round n + 1, which its peers
// set after they had read round n.
inline constexpr int kMaxBlocks = 64;
inline constexpr int kBlockBytes = 16384;

struct Workspace {
  uint32_t rounds[kMaxBlocks];  // rounds that this device has finished
  // The last round that each rank has sent.
  uint32_t arrived[kMaxBlocks][kMaxRanks];
  alignas(128) char data[kMaxBlocks][2][kMaxRanks][kBlockBytes];
};
// op.py allocates this many bytes.
static_assert(sizeof(Workspace) == 16'779'520);

struct Ranks {
  int rank, count;
  Workspace* workspaces[kMaxRanks];
};

inline Status CheckAllReduce(AnyBuffer x, AnyBuffer peers) {
  const int64_t count = peers.dim(1) - 1;
  if (peers.dim(0) != 1 || count < 1 || count > kMaxRanks) {
    return Status::Error(
        "peers: expected one row of a rank and 1 to ", kMaxRanks,
        " addresses but got [", peers.dim(0), ", ", peers.dim(1),
        "]; the call belongs into a region of manual sharding");
  }
  if (x.size_bytes() % 16 != 0) {
    return Status::Error(
        "operand 0 (x): expected a multiple of 16 bytes but got ",
        x.size_bytes());
  }
  return Status::Ok();
}

// Each block of threads normalizes one row at a time, which it exchanges at
// once.
inline Status CheckAllReduceRmsNorm(AnyBuffer x, AnyBuffer peers) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckAllReduce(x, peers));
  const int64_t row_bytes = x.dim(0) == 0 ? 0 : x.size_bytes() / x.dim(0);
  if (row_bytes % 16 != 0 || row_bytes > kBlockBytes) {
    return Status::Error(
        "operand 0 (x): expected rows of a multiple of 16 bytes, at most ",
        kBlockBytes, ", but got ", row_bytes);
  }
  return Status::Ok();
}

}  // namespace torch_xla_ext::all_reduce

#endif  // KERNELS_ALL_REDUCE_ALL_REDUCE_H_
