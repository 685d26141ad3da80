#include "torch_xla_ext/csrc/arguments.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "torch_xla_ext/csrc/text.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

std::string Where(const std::string& target, const std::string& argument) {
  return "custom call " + Quoted(target) + ": " + argument + " ";
}

std::string TypeName(const py::handle& value) {
  return Py_TYPE(value.ptr())->tp_name;
}

std::string Indexed(const char* name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

// The elements of a list, a tuple or another sequence that is not text.
py::tuple ParseSequence(const std::string& target, const std::string& argument,
                        const char* of_what, const py::handle& value) {
  const bool is_sequence =
      PySequence_Check(value.ptr()) && !THPVariable_Check(value.ptr()) &&
      !py::isinstance<py::str>(value) && !py::isinstance<py::bytes>(value);
  if (!is_sequence) {
    throw py::type_error(Where(target, argument) + "must be a sequence of " +
                         of_what + ", but is of type " + TypeName(value));
  }
  return py::tuple(py::reinterpret_borrow<py::object>(value));
}

std::string DTypeName(at::ScalarType dtype) {
  return py::str(py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))));
}

// The XLA type of a dtype, where there is one: what
// torch_xla::MakeXlaPrimitiveType gives unless it is told to narrow types.
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

void CheckNotNarrowed(const std::string& target, const std::string& argument,
                      at::ScalarType dtype,
                      const torch::lazy::BackendDevice& device) {
  if (torch_xla::MakeXlaPrimitiveType(dtype, &device) == XlaType(dtype)) return;
  throw py::value_error(
      Where(target, argument) + "is " + DTypeName(dtype) +
      " to torch, but narrower on the device: a kernel would take the one for "
      "the other; unset XLA_USE_BF16, XLA_DOWNCAST_BF16 and "
      "XLA_USE_32BIT_LONG");
}

std::vector<int64_t> ParseShape(const std::string& target,
                                const std::string& argument,
                                const py::handle& value,
                                int64_t element_size) {
  std::vector<int64_t> shape;
  int64_t bytes = element_size;
  bool overflow = false;
  for (const py::handle& dimension :
       ParseSequence(target, argument, "int", value)) {
    int64_t size = -1;
    // What Python takes for an index: int, numpy.int64, but not float.
    if (!PyIndex_Check(dimension.ptr())) {
      throw py::type_error(Where(target, argument) +
                           "must be a sequence of int, but contains one of type " +
                           TypeName(dimension));
    }
    try {
      size = dimension.cast<int64_t>();
    } catch (const py::cast_error&) {
      overflow = true;
      continue;
    }
    if (size < 0) {
      throw py::value_error(Where(target, argument) +
                            "has the negative dimension " +
                            std::to_string(size));
    }
    // An empty result has no bytes, whatever its other dimensions: XLA still
    // multiplies them.
    overflow |= __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
    shape.push_back(size);
  }
  if (overflow) {
    throw py::value_error(Where(target, argument) + "is too large: " +
                          std::string(py::str(value)) +
                          " has more than 2^63 bytes");
  }
  return shape;
}

}  // namespace

std::string ParseTarget(const py::handle& target) {
  if (!py::isinstance<py::str>(target)) {
    throw py::type_error("custom call: target must be a str, but is of type " +
                         TypeName(target));
  }
  std::string name = target.cast<std::string>();
  if (name.empty()) {
    throw py::value_error("custom call: target is empty; give the name under "
                          "which the kernel is registered");
  }
  return name;
}

std::string ParseBytes(const std::string& target, const char* name,
                       const py::handle& value) {
  if (!py::isinstance<py::bytes>(value) && !py::isinstance<py::str>(value)) {
    throw py::type_error(Where(target, name) +
                         "must be bytes or str, but is of type " + TypeName(value));
  }
  return value.cast<std::string>();
}

std::vector<torch_xla::XLATensorPtr> ParseInputs(const std::string& target,
                                                 const py::handle& inputs) {
  const py::tuple sequence =
      ParseSequence(target, "inputs", "XLA tensors", inputs);
  if (sequence.empty()) {
    throw py::value_error(Where(target, "inputs") +
                          "is empty: a custom call takes at least one tensor, "
                          "which says on what device it runs");
  }
  std::vector<torch_xla::XLATensorPtr> tensors;
  tensors.reserve(sequence.size());
  c10::Device device(c10::kXLA);
  for (size_t i = 0; i < sequence.size(); ++i) {
    const py::handle item = sequence[i];
    if (!THPVariable_Check(item.ptr())) {
      throw py::type_error(Where(target, Indexed("inputs", i)) +
                           "must be an XLA tensor, but is of type " + TypeName(item));
    }
    const at::Tensor& tensor = THPVariable_Unpack(item.ptr());
    torch_xla::XLATensorPtr xla_tensor =
        torch_xla::bridge::TryGetXlaTensor(tensor);
    if (!xla_tensor) {
      throw py::value_error(
          Where(target, Indexed("inputs", i)) +
          "must be an XLA tensor, but is a " + DTypeName(tensor.scalar_type()) +
          " tensor on " + tensor.device().str() +
          "; move it to the device first: tensor.to(\"xla\")");
    }
    if (i == 0) {
      device = tensor.device();
    } else if (tensor.device() != device) {
      throw py::value_error(Where(target, Indexed("inputs", i)) + "is on " +
                            tensor.device().str() + ", but inputs[0] is on " +
                            device.str() +
                            ": the inputs must be on one device");
    }
    tensors.push_back(std::move(xla_tensor));
  }
  return tensors;
}

OutputTypes ParseOutputTypes(const std::string& target,
                             const py::handle& shapes,
                             const py::handle& dtypes) {
  const py::tuple shape_list =
      ParseSequence(target, "output_shapes", "shapes", shapes);
  const py::tuple dtype_list =
      ParseSequence(target, "output_dtypes", "torch.dtype", dtypes);
  if (shape_list.size() != dtype_list.size()) {
    throw py::value_error(
        Where(target, "output_shapes and output_dtypes") +
        "must be of one length, but are of " +
        std::to_string(shape_list.size()) + " and " +
        std::to_string(dtype_list.size()));
  }
  if (shape_list.empty()) {
    throw py::value_error(Where(target, "output_shapes") +
                          "is empty: a custom call gives at least one result");
  }
  OutputTypes types;
  for (size_t i = 0; i < shape_list.size(); ++i) {
    const py::handle dtype = dtype_list[i];
    if (!THPDtype_Check(dtype.ptr())) {
      throw py::type_error(Where(target, Indexed("output_dtypes", i)) +
                           "must be a torch.dtype, but is of type " +
                           TypeName(dtype));
    }
    const at::ScalarType scalar_type =
        reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
    if (!XlaType(scalar_type)) {
      throw py::value_error(Where(target, Indexed("output_dtypes", i)) + "is " +
                            DTypeName(scalar_type) +
                            ", which torch_xla has no type for");
    }
    types.dtypes.push_back(scalar_type);
    types.shapes.push_back(ParseShape(target, Indexed("output_shapes", i),
                                      shape_list[i],
                                      at::elementSize(scalar_type)));
  }
  return types;
}

void CheckNothingIsNarrowed(
    const std::string& target,
    const std::vector<torch_xla::XLATensorPtr>& inputs,
    const OutputTypes& outputs) {
  const torch::lazy::BackendDevice& device = inputs[0]->GetDevice();
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckNotNarrowed(target, Indexed("inputs", i), inputs[i]->dtype(), device);
  }
  for (size_t i = 0; i < outputs.dtypes.size(); ++i) {
    CheckNotNarrowed(target, Indexed("output_dtypes", i), outputs.dtypes[i],
                     device);
  }
}

}  // namespace torch_xla_ext
