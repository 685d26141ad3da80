#include "torch_xla_ext/csrc/custom_call/arguments.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/registry/text.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

// The name of an argument or of one of its elements, formatted only for an
// error.
struct Argument {
  const char* name;
  std::optional<size_t> index = std::nullopt;
};

std::string Where(const std::string& target, const Argument& argument) {
  std::string text = "custom call " + Quoted(target) + ": " + argument.name;
  if (argument.index) text += "[" + std::to_string(*argument.index) + "]";
  return text + " ";
}

std::string TypeName(const py::handle& value) {
  return Py_TYPE(value.ptr())->tp_name;
}

// The maximum size of a payload. A program is a protobuf message, which must be
// smaller than 2 GiB.
constexpr size_t kMaxBytes = size_t{1} << 30;

// The UTF-8 of a str, owned by `text`; nullopt if it cannot be encoded.
std::optional<std::string_view> Utf8(const py::handle& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data != nullptr) return std::string_view(data, size);
  PyErr_Clear();
  return std::nullopt;
}

// The elements of a list, a tuple or another sequence that is not text.
class Sequence {
 public:
  Sequence(const std::string& target, const Argument& argument,
           const char* of_what, const py::handle& value) {
    // To Python, a tensor is a sequence, and text is a sequence of characters.
    // Lists and tuples are checked first: the tensor check is slow.
    const bool is_sequence =
        PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()) ||
        (PySequence_Check(value.ptr()) && !PyUnicode_Check(value.ptr()) &&
         !PyBytes_Check(value.ptr()) && !THPVariable_Check(value.ptr()));
    if (!is_sequence) {
      throw py::type_error(Where(target, argument) + "must be a sequence of " +
                           of_what + ", but is of type " + TypeName(value));
    }
    elements_ =
        py::reinterpret_steal<py::object>(PySequence_Fast(value.ptr(), ""));
    if (!elements_) throw py::error_already_set();
  }

  size_t size() const { return PySequence_Fast_GET_SIZE(elements_.ptr()); }
  py::handle operator[](size_t index) const {
    return PySequence_Fast_GET_ITEM(elements_.ptr(), index);
  }

 private:
  py::object elements_;
};

std::string DTypeName(at::ScalarType dtype) {
  return py::str(py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))));
}

// The XLA type of a dtype, if there is one: that of
// torch_xla::MakeXlaPrimitiveType without the settings that narrow types.
std::optional<xla::PrimitiveType> XlaType(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return xla::PRED;
    case at::kByte:
      return xla::U8;
    case at::kChar:
      return xla::S8;
    case at::kUInt16:
      return xla::U16;
    case at::kShort:
      return xla::S16;
    case at::kUInt32:
      return xla::U32;
    case at::kInt:
      return xla::S32;
    case at::kUInt64:
      return xla::U64;
    case at::kLong:
      return xla::S64;
    case at::kHalf:
      return xla::F16;
    case at::kBFloat16:
      return xla::BF16;
    case at::kFloat:
      return xla::F32;
    case at::kDouble:
      return xla::F64;
    case at::kFloat8_e4m3fn:
      return xla::F8E4M3FN;
    case at::kFloat8_e5m2:
      return xla::F8E5M2;
    case at::kComplexFloat:
      return xla::C64;
    case at::kComplexDouble:
      return xla::C128;
    default:
      return std::nullopt;
  }
}

void CheckNotNarrowed(const std::string& target, const Argument& argument,
                      at::ScalarType dtype,
                      const torch::lazy::BackendDevice& device) {
  if (torch_xla::MakeXlaPrimitiveType(dtype, &device) == XlaType(dtype)) return;
  throw py::value_error(
      Where(target, argument) + "is " + DTypeName(dtype) +
      " in PyTorch, but narrower on the device, so that a kernel would misread "
      "it; unset XLA_USE_BF16, XLA_DOWNCAST_BF16 and "
      "XLA_USE_32BIT_LONG");
}

std::vector<int64_t> ParseShape(const std::string& target,
                                const Argument& argument,
                                const py::handle& value, int64_t element_size) {
  const Sequence dimensions(target, argument, "int", value);
  std::vector<int64_t> shape(dimensions.size());
  int64_t bytes = element_size;
  bool overflow = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    // Whatever Python accepts as an index: int, numpy.int64, but not float.
    const auto index =
        py::reinterpret_steal<py::object>(PyNumber_Index(dimensions[i].ptr()));
    if (!index) {
      PyErr_Clear();
      throw py::type_error(Where(target, argument) +
                           "must be a sequence of int, but contains one of "
                           "type " +
                           TypeName(dimensions[i]));
    }
    int out_of_range = 0;
    shape[i] = PyLong_AsLongLongAndOverflow(index.ptr(), &out_of_range);
    if (shape[i] < 0 && out_of_range == 0) {
      throw py::value_error(Where(target, argument) +
                            "has the negative dimension " +
                            std::to_string(shape[i]));
    }
    // A dimension of 0 makes the result empty, but XLA still multiplies the
    // other dimensions.
    overflow |=
        out_of_range != 0 ||
        __builtin_mul_overflow(bytes, std::max<int64_t>(shape[i], 1), &bytes);
  }
  if (overflow) {
    throw py::value_error(Where(target, argument) +
                          "is out of range: " + std::string(py::str(value)) +
                          " has 2^63 bytes or more");
  }
  return shape;
}

// A key or value of aliases: the index of one of `count` outputs or inputs.
int64_t ParseIndex(const std::string& target, const char* argument,
                   const char* what, const py::handle& value, size_t count) {
  if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr())) {
    throw py::type_error(Where(target, {argument}) + "must be a dict of " +
                         "int, but the " + what + " is of type " +
                         TypeName(value));
  }
  int out_of_range = 0;
  const int64_t index =
      PyLong_AsLongLongAndOverflow(value.ptr(), &out_of_range);
  if (out_of_range != 0 || index < 0 || index >= static_cast<int64_t>(count)) {
    throw py::value_error(Where(target, {argument}) + "names " + what + " " +
                          std::string(py::str(value)) + ", but the call has " +
                          std::to_string(count) + " of them, from 0");
  }
  return index;
}

}  // namespace

std::string ParseTarget(const py::handle& target) {
  if (!py::isinstance<py::str>(target)) {
    throw py::type_error("custom call: target must be a str, but is of type " +
                         TypeName(target));
  }
  const std::optional<std::string_view> name = Utf8(target);
  if (!name.has_value()) {
    throw py::value_error(
        "custom call: target is not valid text: it has half of a surrogate "
        "pair");
  }
  if (name->empty()) {
    throw py::value_error(
        "custom call: target is empty; pass the name under "
        "which the kernel is registered");
  }
  return std::string(*name);
}

std::string ParseBytes(const std::string& target, const char* name,
                       const py::handle& value) {
  if (!py::isinstance<py::bytes>(value) && !py::isinstance<py::str>(value)) {
    throw py::type_error(Where(target, {name}) +
                         "must be bytes or str, but is of type " +
                         TypeName(value));
  }
  std::optional<std::string_view> bytes;
  if (py::isinstance<py::bytes>(value)) {
    bytes.emplace(PyBytes_AS_STRING(value.ptr()),
                  PyBytes_GET_SIZE(value.ptr()));
  } else {
    bytes = Utf8(value);
  }
  if (!bytes.has_value()) {
    throw py::value_error(Where(target, {name}) +
                          "is not valid text: it has half of a surrogate pair");
  }
  if (bytes->size() > kMaxBytes) {
    throw py::value_error(
        Where(target, {name}) + "has " + std::to_string(bytes->size()) +
        " bytes, but at most 2^30 are allowed, because XLA stores a program in "
        "messages of less than 2^31 bytes: pass an operand instead");
  }
  return std::string(*bytes);
}

std::vector<torch_xla::XLATensorPtr> ParseInputs(const std::string& target,
                                                 const py::handle& inputs) {
  const Sequence sequence(target, {"inputs"}, "XLA tensors", inputs);
  if (sequence.size() == 0) {
    throw py::value_error(Where(target, {"inputs"}) +
                          "is empty: a custom call needs at least one tensor, "
                          "which determines its device");
  }
  std::vector<torch_xla::XLATensorPtr> tensors;
  tensors.reserve(sequence.size());
  c10::Device device(c10::kXLA);
  for (size_t i = 0; i < sequence.size(); ++i) {
    const py::handle item = sequence[i];
    if (!THPVariable_Check(item.ptr())) {
      throw py::type_error(Where(target, {"inputs", i}) +
                           "must be an XLA tensor, but is of type " +
                           TypeName(item));
    }
    const at::Tensor& tensor = THPVariable_Unpack(item.ptr());
    torch_xla::XLATensorPtr xla_tensor =
        torch_xla::bridge::TryGetXlaTensor(tensor);
    if (!xla_tensor) {
      throw py::value_error(
          Where(target, {"inputs", i}) + "must be an XLA tensor, but is a " +
          DTypeName(tensor.scalar_type()) + " tensor on " +
          tensor.device().str() +
          "; move it to the device first: tensor.to(\"xla\")");
    }
    if (i == 0) {
      device = tensor.device();
    } else if (tensor.device() != device) {
      throw py::value_error(Where(target, {"inputs", i}) + "is on " +
                            tensor.device().str() + ", but inputs[0] is on " +
                            device.str() +
                            ": all inputs must be on the same device");
    }
    tensors.push_back(std::move(xla_tensor));
  }
  return tensors;
}

OutputTypes ParseOutputTypes(const std::string& target,
                             const py::handle& shapes,
                             const py::handle& dtypes) {
  const Sequence shape_list(target, {"output_shapes"}, "shapes", shapes);
  const Sequence dtype_list(target, {"output_dtypes"}, "torch.dtype", dtypes);
  if (shape_list.size() != dtype_list.size()) {
    throw py::value_error(Where(target, {"output_shapes and output_dtypes"}) +
                          "must have the same length, but have " +
                          std::to_string(shape_list.size()) + " and " +
                          std::to_string(dtype_list.size()));
  }
  if (shape_list.size() == 0) {
    throw py::value_error(Where(target, {"output_shapes"}) +
                          "is empty: a custom call has at least one result");
  }
  OutputTypes types;
  for (size_t i = 0; i < shape_list.size(); ++i) {
    const py::handle dtype = dtype_list[i];
    if (!THPDtype_Check(dtype.ptr())) {
      throw py::type_error(Where(target, {"output_dtypes", i}) +
                           "must be a torch.dtype, but is of type " +
                           TypeName(dtype));
    }
    const at::ScalarType scalar_type =
        reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
    if (!XlaType(scalar_type)) {
      throw py::value_error(Where(target, {"output_dtypes", i}) + "is " +
                            DTypeName(scalar_type) +
                            ", which torch_xla does not support");
    }
    types.dtypes.push_back(scalar_type);
    types.shapes.push_back(ParseShape(target, {"output_shapes", i},
                                      shape_list[i],
                                      at::elementSize(scalar_type)));
  }
  return types;
}

std::map<int64_t, int64_t> ParseAliases(const std::string& target,
                                        const py::handle& aliases,
                                        const py::handle& inputs,
                                        const OutputTypes& outputs) {
  if (aliases.is_none()) return {};
  if (!PyDict_Check(aliases.ptr())) {
    throw py::type_error(Where(target, {"aliases"}) +
                         "must be a dict {output: input}, but is of type " +
                         TypeName(aliases));
  }
  const Sequence sequence(target, {"inputs"}, "XLA tensors", inputs);
  std::map<int64_t, int64_t> result;
  std::set<int64_t> used;
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(aliases)) {
    const int64_t output =
        ParseIndex(target, "aliases", "output", key, outputs.dtypes.size());
    const int64_t input =
        ParseIndex(target, "aliases", "input", value, sequence.size());
    if (!used.insert(input).second) {
      throw py::value_error(Where(target, {"aliases"}) +
                            "gives two outputs the buffer of input " +
                            std::to_string(input));
    }
    const at::Tensor& tensor = THPVariable_Unpack(sequence[input].ptr());
    if (tensor.sizes() != at::IntArrayRef(outputs.shapes[output]) ||
        tensor.scalar_type() != outputs.dtypes[output]) {
      std::ostringstream text;
      text << Where(target, {"aliases"}) << "gives output " << output << ", "
           << DTypeName(outputs.dtypes[output])
           << at::IntArrayRef(outputs.shapes[output])
           << ", the buffer of input " << input << ", "
           << DTypeName(tensor.scalar_type()) << tensor.sizes()
           << ": they must have the same shape and dtype";
      throw py::value_error(text.str());
    }
    result[output] = input;
  }
  return result;
}

std::map<int64_t, std::vector<int64_t>> ParseLayouts(
    const std::string& target, const char* argument, const char* what,
    const py::handle& layouts, const std::vector<size_t>& ranks) {
  if (layouts.is_none()) return {};
  if (!PyDict_Check(layouts.ptr())) {
    throw py::type_error(Where(target, {argument}) + "must be a dict {" + what +
                         ": dimensions}, but is of type " + TypeName(layouts));
  }
  std::map<int64_t, std::vector<int64_t>> result;
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(layouts)) {
    const auto index = static_cast<size_t>(
        ParseIndex(target, argument, what, key, ranks.size()));
    std::vector<int64_t> layout =
        ParseShape(target, {argument, index}, value, /*element_size=*/1);
    std::vector<int64_t> sorted = layout;
    std::sort(sorted.begin(), sorted.end());
    bool is_permutation = sorted.size() == ranks[index];
    for (size_t i = 0; is_permutation && i < sorted.size(); ++i) {
      is_permutation = sorted[i] == static_cast<int64_t>(i);
    }
    if (!is_permutation) {
      throw py::value_error(
          Where(target, {argument, index}) + "must have each of the " + what +
          "'s " + std::to_string(ranks[index]) + " dimensions once, but is " +
          std::string(py::str(value)));
    }
    result[static_cast<int64_t>(index)] = std::move(layout);
  }
  return result;
}

void CheckNumHiddenResults(const std::string& target, int64_t num_hidden,
                           const OutputTypes& outputs) {
  const auto count = static_cast<int64_t>(outputs.shapes.size());
  if (num_hidden >= 0 && num_hidden < count) return;
  throw py::value_error(Where(target, {"num_hidden_results"}) + "is " +
                        std::to_string(num_hidden) + ", but the call has " +
                        std::to_string(count) + " results");
}

void CheckNothingIsNarrowed(const std::string& target,
                            const std::vector<torch_xla::XLATensorPtr>& inputs,
                            const OutputTypes& outputs) {
  const torch::lazy::BackendDevice& device = inputs[0]->GetDevice();
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckNotNarrowed(target, {"inputs", i}, inputs[i]->dtype(), device);
  }
  for (size_t i = 0; i < outputs.dtypes.size(); ++i) {
    CheckNotNarrowed(target, {"output_dtypes", i}, outputs.dtypes[i], device);
  }
}

}  // namespace torch_xla_ext
