// XlaGpuChooseExperts: the router of an MoE layer, in float.
//
// The scores of a token are the softmax or the sigmoids of its logits. An
// expert's rank is its score plus its bias. Experts are divided into num_groups
// groups of neighbors. The candidates are the experts of the top_groups groups
// whose largest rank is largest or, with a bias, the sum of whose two largest
// ranks is largest. The top_k candidates with the largest ranks are chosen; of
// equal ranks, the first. An expert's weight is its score times `scaling`; with
// `renormalize`, scores are first divided by the sum of the chosen ones. A
// token whose mask is false gets the expert number `experts`, which stands for
// none, and the weight 0.
#ifndef KERNELS_CHOOSE_EXPERTS_CHOOSE_EXPERTS_H_
#define KERNELS_CHOOSE_EXPERTS_CHOOSE_EXPERTS_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::choose_experts {

inline constexpr Signature kChooseExperts = ParseSignature(
    "XlaGpuChooseExperts(logits: T[n, experts], bias?: F32[experts], "
    "mask?: PRED[n]) -> "
    "(weights: F32[n, top_k], chosen: S32[n, top_k]) "
    "where T: F16 | BF16 | F32, experts: 1..1024");

struct ChooseExpertsParams {
  int64_t top_k;
  bool sigmoid;  // or softmax
  int64_t num_groups;
  int64_t top_groups;
  bool renormalize;
  double scaling;

  static constexpr auto Fields() {
    using P = ChooseExpertsParams;
    return MakeFields(
        Field("top_k", &P::top_k, 1, 64), Field("sigmoid", &P::sigmoid),
        Field("num_groups", &P::num_groups, 1, 32),
        Field("top_groups", &P::top_groups, 1, 32),
        Field("renormalize", &P::renormalize), Field("scaling", &P::scaling));
  }
};

// Requires that top_groups groups have at least top_k experts.
inline Status CheckParams(int64_t experts, const ChooseExpertsParams& params) {
  if (experts % params.num_groups != 0) {
    return Status::Error("expected num_groups to divide ", experts,
                         " experts but got ", params.num_groups);
  }
  const int64_t candidates = experts / params.num_groups * params.top_groups;
  if (params.top_groups > params.num_groups || candidates < params.top_k) {
    return Status::Error("expected top_groups of ", params.num_groups,
                         " groups with top_k experts but got ",
                         params.top_groups, " with ", candidates);
  }
  return Status::Ok();
}

}  // namespace torch_xla_ext::choose_experts

#endif  // KERNELS_CHOOSE_EXPERTS_CHOOSE_EXPERTS_H_
