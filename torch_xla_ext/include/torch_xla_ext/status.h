// The result of a launch function.
#ifndef TORCH_XLA_EXT_STATUS_H_
#define TORCH_XLA_EXT_STATUS_H_

#include <sstream>
#include <string>
#include <utility>

namespace torch_xla_ext {

// Success, or a failure with its reason. The reason need not name the target:
// the caller of the launch function prefixes it with "XlaGpuFoo: ".
class Status {
 public:
  static Status Ok() { return Status(); }

  // A failure whose text is the concatenation of `parts`.
  template <typename... Parts>
  static Status Error(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    Status status;
    status.ok_ = false;
    status.message_ = text.str();
    return status;
  }

  bool ok() const { return ok_; }
  const std::string& message() const { return message_; }

 private:
  Status() = default;

  bool ok_ = true;
  std::string message_;
};

}  // namespace torch_xla_ext

// Returns from the function with the failure of `expression`, if it is one.
#define XLA_KERNEL_RETURN_IF_ERROR(expression)                           \
  do {                                                                   \
    if (::torch_xla_ext::Status status_ = (expression); !status_.ok()) { \
      return status_;                                                    \
    }                                                                    \
  } while (false)

#endif  // TORCH_XLA_EXT_STATUS_H_
