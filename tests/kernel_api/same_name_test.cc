// Two kernels of one library have parameter structs of the same name: each gets
// its own parameters (same_name.cc).
#include <cstddef>
#include <cstdio>
#include <string>

double MulAdd(const char* bytes, size_t size, double x);
double AddMul(const char* bytes, size_t size, double x);
std::string TextOfMulAdd();
std::string TextOfAddMul();

namespace {

int failures = 0;

template <typename T>
void Expect(const char* what, const T& value, const T& expected) {
  if (value == expected) return;
  ++failures;
  std::printf("%s is wrong\n", what);
}

}  // namespace

int main() {
  const double mul_add[] = {3, 10}, add_mul[] = {10, 3};
  Expect("MulAdd",
         MulAdd(reinterpret_cast<const char*>(mul_add), sizeof(mul_add), 2),
         16.0);
  Expect("AddMul",
         AddMul(reinterpret_cast<const char*>(add_mul), sizeof(add_mul), 2),
         16.0);
  Expect("TextOfMulAdd", TextOfMulAdd(), std::string("mul: f64, add: f64"));
  Expect("TextOfAddMul", TextOfAddMul(), std::string("add: f64, mul: f64"));
  return failures == 0 ? 0 : 1;
}
