// XlaGpuAllReduce for the CPU: the same exchange between threads.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/all_reduce/all_reduce.h"
#include "kernels/common/host_floats.h"

namespace torch_xla_ext::all_reduce {
namespace {

void WaitFor(const uint32_t* flag, uint32_t round) {
  while (static_cast<int32_t>(__atomic_load_n(flag, __ATOMIC_ACQUIRE) - round) <
         0) {
    std::this_thread::yield();
  }
}

Status AllReduceOnHost(AnyBuffer x, AnyBuffer peers, AnyResult out) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckAllReduce(x, peers));
  const int64_t* const row = peers.data<int64_t>();
  const int rank = static_cast<int>(row[0]);
  const int count = static_cast<int>(peers.dim(1) - 1);
  const auto workspace = [&](int of) {
    return reinterpret_cast<Workspace*>(row[1 + of]);
  };
  Workspace* const own = workspace(rank);
  const int64_t size = static_cast<int64_t>(x.size_bytes());
  for (int64_t begin = 0; begin < size; begin += kBlockBytes) {
    const int64_t length = std::min<int64_t>(kBlockBytes, size - begin);
    const uint32_t round = ++own->rounds[0];
    for (int to = 0; to < count; ++to) {
      std::memcpy(workspace(to)->data[0][round % 2][rank],
                  static_cast<const char*>(x.untyped_data()) + begin, length);
      __atomic_store_n(&workspace(to)->arrived[0][rank], round,
                       __ATOMIC_RELEASE);
    }
    for (int from = 0; from < count; ++from) {
      WaitFor(&own->arrived[0][from], round);
    }
    VisitFloat(x.dtype(), [&](auto t) {
      using T = decltype(t);
      T* const to = out.data<T>() + begin / sizeof(T);
      for (size_t i = 0; i < length / sizeof(T); ++i) {
        float sum = 0;
        for (int from = 0; from < count; ++from) {
          sum += static_cast<float>(
              reinterpret_cast<const T*>(own->data[0][round % 2][from])[i]);
        }
        to[i] = static_cast<T>(sum);
      }
    });
  }
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::all_reduce

XLA_KERNEL_HOST(XlaGpuAllReduce, torch_xla_ext::all_reduce::kAllReduce,
                torch_xla_ext::all_reduce::AllReduceOnHost);
