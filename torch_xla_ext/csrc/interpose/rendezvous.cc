// Interposes on the function in which a CPU device waits for the others in a
// collective. XLA aborts the process if a device arrives 10 seconds after the
// first one. That can happen on a busy machine, or while one thread saves a
// checkpoint.
//
// This works because the upstream binary calls it through its PLT.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "torch_xla_ext/csrc/interpose/upstream_function.h"

// As in Abseil: the seconds in two halves, each aligned on its own, and
// quarters of a nanosecond.
namespace absl {
inline namespace lts_20230802 {
class Duration {
 public:
  explicit Duration(int64_t seconds)
      : low_(static_cast<uint32_t>(seconds)),
        high_(static_cast<uint32_t>(seconds >> 32)) {}

 private:
  uint32_t low_, high_;
  uint32_t quarters_ = 0;
};
static_assert(sizeof(Duration) == 12 && alignof(Duration) == 4);
}  // namespace lts_20230802
}  // namespace absl

namespace xla::internal {

struct RendezvousStateSynchronization;

void AwaitAndLogIfStuck(RendezvousStateSynchronization& state, int32_t id,
                        std::string_view name,
                        absl::Duration /*warn_stuck_timeout*/,
                        absl::Duration /*terminate_timeout*/) {
  static const auto upstream = torch_xla::UpstreamFunction(&AwaitAndLogIfStuck);
  static const int64_t seconds = [] {
    const char* const setting = std::getenv("TORCH_XLA_EXT_COLLECTIVE_TIMEOUT");
    const int64_t value = setting == nullptr ? 0 : std::atoll(setting);
    return value > 0 ? value : 60;
  }();
  upstream(state, id, name, absl::Duration(seconds / 2),
           absl::Duration(seconds - seconds / 2));
}

}  // namespace xla::internal
