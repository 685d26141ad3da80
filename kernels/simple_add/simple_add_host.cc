// Placeholder.
#include "xla/service/custom_call_target_registry.h"
static void HostAdd(void* out, const void** in, const char*, size_t, void*) {
  auto a = (const float*)in[0];
  auto b = (const float*)in[1];
  auto o = (float**)out;
  for (int i = 0; i < 3; i++) o[0][i] = a[i] + b[i];
}
XLA_REGISTER_CUSTOM_CALL_TARGET_WITH_SYM("XlaGpuSimpleAdd", HostAdd, "Host");
