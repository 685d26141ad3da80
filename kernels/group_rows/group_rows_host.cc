// XlaGpuGroupRows for the CPU.
#include <vector>

#include "kernels/group_rows/group_rows.h"

namespace torch_xla_ext::group_rows {
namespace {

Status GroupRowsOnHost(Buffer<S32, 1> groups, Result<S32, 1> order,
                       Result<S32, 1> position, Result<S32, 2> ranges,
                       const GroupRowsParams& params) {
  const int64_t count = params.num_groups;
  // Number `count` stands for rows without a group.
  const auto group_of = [&](int64_t row) {
    const int32_t group = groups.data()[row];
    return 0 <= group && group < count ? group : count;
  };
  std::vector<int32_t> next(count + 2, 0);
  for (int64_t row = 0; row < groups.size(); ++row) ++next[group_of(row) + 1];
  for (int64_t g = 0; g < count; ++g) {
    next[g + 1] += next[g];
    ranges.data()[2 * g] = next[g];
    ranges.data()[2 * g + 1] = next[g + 1];
  }
  for (int64_t row = 0; row < groups.size(); ++row) {
    const int32_t at = next[group_of(row)]++;
    position.data()[row] = at;
    order.data()[at] = static_cast<int32_t>(row);
  }
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::group_rows

XLA_KERNEL_HOST(XlaGpuGroupRows, torch_xla_ext::group_rows::kGroupRows,
                torch_xla_ext::group_rows::GroupRowsOnHost);
