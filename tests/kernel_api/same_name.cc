// Compiled twice, as two kernels' files of one library, whose parameters are
// structs of one name: FUNCTION is another name, and FIRST and SECOND are the
// same two fields in another order.
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
