// XlaGpuGroupRows: sorts rows by the numbers of their groups.
//
// position[row] is a row's index after sorting, and order[position[row]] is the
// row. Rows of a group keep their order. Group g has the positions
// [ranges[g][0], ranges[g][1]). Rows whose number is not in [0, num_groups)
// come last.
#ifndef KERNELS_GROUP_ROWS_GROUP_ROWS_H_
#define KERNELS_GROUP_ROWS_GROUP_ROWS_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::group_rows {

inline constexpr Signature kGroupRows = ParseSignature(
    "XlaGpuGroupRows(groups: S32[n]) -> (order: S32[n], position: S32[n], "
    "ranges: S32[num_groups, 2])");

struct GroupRowsParams {
  int64_t num_groups;

  static constexpr auto Fields() {
    return MakeFields(
        Field("num_groups", &GroupRowsParams::num_groups, 1, 1024));
  }
};

}  // namespace torch_xla_ext::group_rows

#endif  // KERNELS_GROUP_ROWS_GROUP_ROWS_H_
