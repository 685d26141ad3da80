// Interposes on reductions of torch_xla, to which an empty list of dimensions
// means none of them: x.amax() was x. To torch it means all of them. A
// dimension of a tensor that has none, `x.sum().logsumexp(0)`, was an error.
//
// This works because the stock binary calls them through its PLT.
#include <ATen/ATen.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/front/stock.h"

namespace torch_xla {

struct XLANativeFunctions {
  using Dimensions = at::OptionalIntArrayRef;
  using Correction = std::optional<at::Scalar>;

  static at::Tensor amax(const at::Tensor& self, at::IntArrayRef dim,
                         bool keepdim);
  static at::Tensor amin(const at::Tensor& self, at::IntArrayRef dim,
                         bool keepdim);
  static at::Tensor linalg_vector_norm(const at::Tensor& self,
                                       const at::Scalar& ord, Dimensions dim,
                                       bool keepdim,
                                       std::optional<at::ScalarType> dtype);
  static at::Tensor logsumexp(const at::Tensor& self, at::IntArrayRef dim,
                              bool keepdim);
  static at::Tensor mean(const at::Tensor& self, Dimensions dim, bool keepdim,
                         std::optional<at::ScalarType> dtype);
  static at::Tensor std(const at::Tensor& self, Dimensions dim,
                        const Correction& correction, bool keepdim);
  static std::tuple<at::Tensor, at::Tensor> std_mean(
      const at::Tensor& self, Dimensions dim, const Correction& correction,
      bool keepdim);
  static at::Tensor sum(const at::Tensor& self, Dimensions dim, bool keepdim,
                        std::optional<at::ScalarType> dtype);
  static at::Tensor var(const at::Tensor& self, Dimensions dim,
                        const Correction& correction, bool keepdim);
  static std::tuple<at::Tensor, at::Tensor> var_mean(
      const at::Tensor& self, Dimensions dim, const Correction& correction,
      bool keepdim);
};

namespace {

bool IsAll(const at::Tensor& self, at::IntArrayRef dim) {
  return dim.empty() ||
         (self.dim() == 0 && dim.size() == 1 && (dim[0] == 0 || dim[0] == -1));
}

std::vector<int64_t> DimensionsOf(const at::Tensor& self, at::IntArrayRef dim) {
  if (!IsAll(self, dim)) return dim.vec();
  std::vector<int64_t> all(self.dim());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// To the stock functions, no list means all.
at::OptionalIntArrayRef ListOf(const at::Tensor& self,
                               at::OptionalIntArrayRef dim) {
  return dim.has_value() && IsAll(self, *dim) ? std::nullopt : dim;
}

}  // namespace

at::Tensor XLANativeFunctions::amax(const at::Tensor& self, at::IntArrayRef dim,
                                    bool keepdim) {
  static auto* const stock =
      Stock(&XLANativeFunctions::amax,
            "_ZN9torch_xla18XLANativeFunctions4amaxERKN2at6TensorEN3c108ArrayRe"
            "fIlEEb");
  return stock(self, DimensionsOf(self, dim), keepdim);
}

at::Tensor XLANativeFunctions::amin(const at::Tensor& self, at::IntArrayRef dim,
                                    bool keepdim) {
  static auto* const stock =
      Stock(&XLANativeFunctions::amin,
            "_ZN9torch_xla18XLANativeFunctions4aminERKN2at6TensorEN3c108ArrayRe"
            "fIlEEb");
  return stock(self, DimensionsOf(self, dim), keepdim);
}

at::Tensor XLANativeFunctions::linalg_vector_norm(
    const at::Tensor& self, const at::Scalar& ord, Dimensions dim, bool keepdim,
    std::optional<at::ScalarType> dtype) {
  static auto* const stock =
      Stock(&XLANativeFunctions::linalg_vector_norm,
            "_ZN9torch_xla18XLANativeFunctions18linalg_vector_normERKN2at6Tenso"
            "rERKN3c106ScalarENS5_16OptionalArrayRefIlEEbSt8optionalINS5_10Scal"
            "arTypeEE");
  return stock(self, ord, ListOf(self, dim), keepdim, dtype);
}

at::Tensor XLANativeFunctions::logsumexp(const at::Tensor& self,
                                         at::IntArrayRef dim, bool keepdim) {
  static auto* const stock =
      Stock(&XLANativeFunctions::logsumexp,
            "_ZN9torch_xla18XLANativeFunctions9logsumexpERKN2at6TensorEN3c108Ar"
            "rayRefIlEEb");
  return stock(self, DimensionsOf(self, dim), keepdim);
}

at::Tensor XLANativeFunctions::mean(const at::Tensor& self, Dimensions dim,
                                    bool keepdim,
                                    std::optional<at::ScalarType> dtype) {
  static auto* const stock =
      Stock(&XLANativeFunctions::mean,
            "_ZN9torch_xla18XLANativeFunctions4meanERKN2at6TensorEN3c1016Option"
            "alArrayRefIlEEbSt8optionalINS5_10ScalarTypeEE");
  return stock(self, ListOf(self, dim), keepdim, dtype);
}

at::Tensor XLANativeFunctions::std(const at::Tensor& self, Dimensions dim,
                                   const Correction& correction, bool keepdim) {
  static auto* const stock =
      Stock(&XLANativeFunctions::std,
            "_ZN9torch_xla18XLANativeFunctions3stdERKN2at6TensorEN3c1016Optiona"
            "lArrayRefIlEERKSt8optionalINS5_6ScalarEEb");
  return stock(self, ListOf(self, dim), correction, keepdim);
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::std_mean(
    const at::Tensor& self, Dimensions dim, const Correction& correction,
    bool keepdim) {
  static auto* const stock =
      Stock(&XLANativeFunctions::std_mean,
            "_ZN9torch_xla18XLANativeFunctions8std_meanERKN2at6TensorEN3c1016Op"
            "tionalArrayRefIlEERKSt8optionalINS5_6ScalarEEb");
  return stock(self, ListOf(self, dim), correction, keepdim);
}

at::Tensor XLANativeFunctions::sum(const at::Tensor& self, Dimensions dim,
                                   bool keepdim,
                                   std::optional<at::ScalarType> dtype) {
  static auto* const stock =
      Stock(&XLANativeFunctions::sum,
            "_ZN9torch_xla18XLANativeFunctions3sumERKN2at6TensorEN3c1016Optiona"
            "lArrayRefIlEEbSt8optionalINS5_10ScalarTypeEE");
  return stock(self, ListOf(self, dim), keepdim, dtype);
}

at::Tensor XLANativeFunctions::var(const at::Tensor& self, Dimensions dim,
                                   const Correction& correction, bool keepdim) {
  static auto* const stock =
      Stock(&XLANativeFunctions::var,
            "_ZN9torch_xla18XLANativeFunctions3varERKN2at6TensorEN3c1016Optiona"
            "lArrayRefIlEERKSt8optionalINS5_6ScalarEEb");
  return stock(self, ListOf(self, dim), correction, keepdim);
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::var_mean(
    const at::Tensor& self, Dimensions dim, const Correction& correction,
    bool keepdim) {
  static auto* const stock =
      Stock(&XLANativeFunctions::var_mean,
            "_ZN9torch_xla18XLANativeFunctions8var_meanERKN2at6TensorEN3c1016Op"
            "tionalArrayRefIlEERKSt8optionalINS5_6ScalarEEb");
  return stock(self, ListOf(self, dim), correction, keepdim);
}

}  // namespace torch_xla
