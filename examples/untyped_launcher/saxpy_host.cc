// The same for the CPU, where the results come first, as an array.
#include <cstddef>
#include <cstdint>

struct SaxpyArguments {  // as saxpy.py packs them
  int64_t size;
  float a;
};

extern "C" void LegacySaxpy(void* out, const void** in, const char* opaque,
                            size_t opaque_len, void* status) {
  const auto& arguments = *reinterpret_cast<const SaxpyArguments*>(opaque);
  const auto* x = static_cast<const float*>(in[0]);
  const auto* y = static_cast<const float*>(in[1]);
  auto* sum = static_cast<float*>(static_cast<void**>(out)[0]);
  for (int64_t i = 0; i < arguments.size; ++i)
    sum[i] = arguments.a * x[i] + y[i];
}
