// Runs actions after torch_xla has created its client. The front library and
// patches/ call ClientIsMade.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_NEW_CLIENT_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_NEW_CLIENT_H_

namespace torch_xla_ext {

// Sets the action that ClientIsMade runs last, and replaces an earlier one.
void SetActionOfNewClient(void (*action)());

// Starts autograd's threads, and then runs the action, which may use the
// client.
void ClientIsMade();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_NEW_CLIENT_H_
