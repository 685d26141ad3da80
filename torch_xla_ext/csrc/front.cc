// Placeholder: the prototype.
#include <ATen/core/IListRef.h>
#include <Python.h>
#include <dlfcn.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/lazy/core/hash.h>
#include <torch/csrc/lazy/core/ir.h>
#include <torch/csrc/lazy/core/tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

namespace absl {
inline namespace lts_20230802 {
class Status;
template <class T>
class Span {
 public:
  Span(const std::remove_const_t<T>* p, size_t n)
      : p_(const_cast<T*>(p)), n_(n) {}
  Span() : p_(nullptr), n_(0) {}

 private:
  T* p_;
  size_t n_;
};
}  // namespace lts_20230802
}  // namespace absl
namespace xla {
class XlaBuilder;
class Literal;
class ShapeIndex;
class XlaOp {
 public:
  XlaOp() : h(-1), b(nullptr) {}
  XlaBuilder* builder() const { return b; }
  long h;
  XlaBuilder* b;
};
enum PrimitiveType : int;
class Shape {
 public:
  Shape();
  Shape(const Shape&);
  Shape(Shape&&) noexcept;
  ~Shape();

 private:
  alignas(8) char s[320];
};
enum CustomCallSchedule : int;
enum CustomCallApiVersion : int;
XlaOp CustomCallWithLayout(
    XlaBuilder*, const std::string&, absl::Span<const XlaOp>, const Shape&,
    absl::Span<const Shape>, const std::string&, bool,
    absl::Span<const std::pair<ShapeIndex, std::pair<int64_t, ShapeIndex>>>,
    const Literal*, CustomCallSchedule, CustomCallApiVersion);
XlaOp GetTupleElement(XlaOp, int64_t);
struct ShapeUtil {
  static Shape MakeShape(PrimitiveType, absl::Span<const int64_t>);
  static Shape MakeTupleShape(absl::Span<const Shape>);
};
class CustomCallTargetRegistry {
 public:
  static CustomCallTargetRegistry* Global();
  void Register(const std::string&, void*, const std::string&);
};
}  // namespace xla
namespace torch_xla {
class LoweringContext {
 public:
  xla::XlaOp GetOutputOp(const torch::lazy::Output&);
};
struct XlaOpVector {
  char d[24];
  ~XlaOpVector();
};
struct ShapeHelper {
  static const xla::Shape& ShapeOfXlaOp(xla::XlaOp);
};
struct OpKindWrapper;
extern const OpKindWrapper xla_gpu_custom_call;
void DetectDynamicShape(torch::lazy::NodePtr);
xla::PrimitiveType MakeXlaPrimitiveType(at::ScalarType,
                                        const torch::lazy::BackendDevice*);
class XlaNode : public torch::lazy::Node {
 public:
  XlaNode(torch::lazy::OpKind, torch::lazy::OpList, xla::Shape, size_t,
          torch::lazy::hash_t);
  ~XlaNode() override;
  virtual torch::lazy::NodePtr Clone(torch::lazy::OpList) const;
  virtual XlaOpVector Lower(LoweringContext*) const;
  XlaOpVector ReturnOps(absl::Span<const xla::XlaOp>, LoweringContext*) const;
  torch::lazy::hash_t hash() const override;
  torch::lazy::hash_t shapeHash() const override;
  std::string ToString() const override;

 private:
  alignas(8) char s[512];
};
class XLATensor : public torch::lazy::LazyTensor {
 public:
  torch::lazy::Value GetIrValue() const;
  c10::intrusive_ptr<XLATensor> CreateFrom(torch::lazy::Value,
                                           std::optional<at::ScalarType>,
                                           bool) const;
};
using XLATensorPtr = c10::intrusive_ptr<XLATensor>;
namespace bridge {
std::vector<XLATensorPtr> GetXlaTensors(const at::ITensorListRef&);
std::vector<at::Tensor> AtenFromXlaTensors(absl::Span<const XLATensorPtr>);
std::optional<torch::lazy::BackendDevice> GetXlaDevice(const at::Tensor&);
}  // namespace bridge

std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& out, int n,
    const std::string& payload, const std::string& target) {
  std::vector<xla::Shape> in;
  in.reserve(inputs.size());
  for (auto& i : inputs) in.push_back(ShapeHelper::ShapeOfXlaOp(i));
  xla::XlaOp o = xla::CustomCallWithLayout(
      inputs[0].builder(), target, {inputs.data(), inputs.size()}, out,
      {in.data(), in.size()}, payload, false, {}, nullptr,
      xla::CustomCallSchedule(0),
      xla::CustomCallApiVersion(target == "triton_kernel_call" ? 2 : 3));
  std::vector<xla::XlaOp> r;
  for (int i = 0; i < n; i++) r.push_back(xla::GetTupleElement(o, i));
  return r;
}
torch::lazy::OpKind Kind() {
  static torch::lazy::OpKind k =
      torch::lazy::OpKind::Get("xla::gpu_custom_call");
  return k;
}
class TargetedGpuCustomCall : public XlaNode {
 public:
  TargetedGpuCustomCall(torch::lazy::OpList in, const xla::Shape& out, int n,
                        std::string payload, std::string target)
      : XlaNode(Kind(), in, out, n, torch::lazy::MHash(payload, target)),
        shape_(out),
        n_(n),
        payload_(payload),
        target_(target) {}
  torch::lazy::NodePtr Clone(torch::lazy::OpList ops) const override {
    return std::make_shared<TargetedGpuCustomCall>(ops, shape_, n_, payload_,
                                                   target_);
  }
  XlaOpVector Lower(LoweringContext* l) const override {
    std::vector<xla::XlaOp> in;
    for (auto& o : operands()) in.push_back(l->GetOutputOp(o));
    auto out = BuildGpuCustomCall(in, shape_, n_, payload_, target_);
    return ReturnOps({out.data(), out.size()}, l);
  }
  std::string ToString() const override {
    return XlaNode::ToString() + ", target=" + target_;
  }
  xla::Shape shape_;
  int n_;
  std::string payload_, target_;
};
}  // namespace torch_xla
extern "C" void XlaCustomCallStatusSetFailure(void* status, const char* message,
                                              size_t message_len);
extern "C" void HostFail(void* out, const void** in, const char*, size_t,
                         void* st) {
  const char* m = "HostFail: operand 1 (b): expected 3 elements";
  XlaCustomCallStatusSetFailure(st, m, strlen(m));
}
static struct R2 {
  R2() {
    xla::CustomCallTargetRegistry::Global()->Register("HostFail",
                                                      (void*)HostFail, "Host");
  }
} r2;
namespace tsl {
std::string* TfCheckOpHelperOutOfLine(const absl::Status& v, const char* msg) {
  using F = std::string* (*)(const absl::Status&, const char*);
  static F stock = (F)dlsym(RTLD_NEXT,
                            "_ZN3tsl24TfCheckOpHelperOutOfLineB5cxx11ERKN4absl1"
                            "2lts_202308026StatusEPKc");
  std::string* text = stock(v, msg);
  Dl_info i{};
  if (dladdr(__builtin_return_address(0), &i) && i.dli_sname &&
      (!strncmp(i.dli_sname, "_ZN9torch_xla", 13) ||
       !strncmp(i.dli_sname, "_ZNK9torch_xla", 14))) {
    std::string t = *text;
    delete text;
    throw std::runtime_error(t);
  }
  return text;
}
}  // namespace tsl

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__XLAC() {
  Dl_info i;
  dladdr((void*)PyInit__XLAC, &i);
  std::string p(i.dli_fname);
  p = p.substr(0, p.rfind('/')) + "/torch_xla/lib/_XLAC.so";
  void* h = dlopen(p.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (!h) {
    PyErr_SetString(PyExc_ImportError, dlerror());
    return nullptr;
  }
  auto init = (PyObject * (*)()) dlsym(h, "PyInit__XLAC");
  PyObject* m = init();
  if (!m) return m;
  auto mod = py::reinterpret_borrow<py::module>(m);
  py::delattr(mod, "_xla_gpu_custom_call");
  mod.def(
      "_xla_gpu_custom_call",
      [](const std::vector<at::Tensor>& inputs, const std::string& payload,
         const std::vector<std::vector<int64_t>>& shapes,
         const std::vector<py::object>& dtypes, const std::string& target) {
        using namespace torch_xla;
        auto xt = bridge::GetXlaTensors(inputs);
        std::vector<torch::lazy::Value> vals;
        for (auto& t : xt) vals.push_back(t->GetIrValue());
        auto dev = bridge::GetXlaDevice(inputs[0]);
        std::vector<xla::Shape> os;
        std::vector<at::ScalarType> st;
        for (size_t k = 0; k < shapes.size(); k++) {
          st.push_back(
              reinterpret_cast<THPDtype*>(dtypes[k].ptr())->scalar_type);
          os.push_back(
              xla::ShapeUtil::MakeShape(MakeXlaPrimitiveType(st[k], &*dev),
                                        {shapes[k].data(), shapes[k].size()}));
        }
        torch::lazy::NodePtr node = std::make_shared<TargetedGpuCustomCall>(
            vals, xla::ShapeUtil::MakeTupleShape({os.data(), os.size()}),
            (int)os.size(), payload, target);
        DetectDynamicShape(node);
        std::vector<XLATensorPtr> outs;
        for (size_t k = 0; k < os.size(); k++)
          outs.push_back(
              xt[0]->CreateFrom(torch::lazy::Value(node, k), st[k], true));
        return bridge::AtenFromXlaTensors({outs.data(), outs.size()});
      },
      py::arg("inputs"), py::arg("payload"), py::arg("output_shapes"),
      py::arg("output_dtypes"), py::arg("target") = "triton_kernel_call");
  return mod.release().ptr();
}
