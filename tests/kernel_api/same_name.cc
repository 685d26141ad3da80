// Compiled twice, as the files of two kernels in one library, whose parameter
// structs have the same name. The two differ in FUNCTION, the function's name,
// and in FIRST and SECOND, the order of the struct's two fields.
#include <cstddef>
#include <string>

#include "torch_xla_ext/params.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

struct Params {
  double FIRST;
  double SECOND;

  static constexpr auto Fields() {
    return torch_xla_ext::MakeFields(
        torch_xla_ext::Field(TEXT(FIRST), &Params::FIRST),
        torch_xla_ext::Field(TEXT(SECOND), &Params::SECOND));
  }
};

// 3 x + 10 for the payload mul = 3, add = 10, in the struct's order.
double FUNCTION(const char* bytes, size_t size, double x) {
  Params params = {};
  if (!torch_xla_ext::internal::UnpackParams(bytes, size, &params).ok()) {
    return -1;
  }
  return params.mul * x + params.add;
}

std::string TEXT_FUNCTION() {
  return torch_xla_ext::internal::ParamsText<Params>();
}
