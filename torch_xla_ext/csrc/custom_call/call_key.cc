#include "torch_xla_ext/csrc/custom_call/call_key.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

void AppendText(std::string_view text, std::string* key) {
  AppendBytes(text.size(), key);
  key->append(text);
}

bool AppendTensor(const at::Tensor& tensor, std::string* key) {
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
      tensor.key_set().has(c10::DispatchKey::Python)) {
    return false;
  }
  key->push_back('t');
  AppendBytes(tensor.scalar_type(), key);
  const c10::Device device = tensor.device();
  AppendBytes(device.type(), key);
  AppendBytes(device.index(), key);
  const at::IntArrayRef sizes = tensor.sizes();
  AppendBytes(sizes.size(), key);
  key->append(reinterpret_cast<const char*>(sizes.data()),
              sizes.size() * sizeof(int64_t));
  return true;
}

namespace {

namespace py = pybind11;

// The key of Python values.
class KeyOfValues {
 public:
  KeyOfValues(const py::object& operands, const py::object& other)
      : operands_(operands), other_(other) {
    // A call in a program for several devices has a different key.
    AppendBytes(torch_xla::UseVirtualDevice(/*force_spmd=*/false), &key_);
  }

  // Returns false for values that are not cached.
  bool Append(py::handle value) {
    PyObject* const object = value.ptr();
    if (value.is_none()) {
      key_.push_back('n');
    } else if (PyBool_Check(object)) {
      key_.push_back(object == Py_True ? 'T' : 'F');
    } else if (PyLong_CheckExact(object)) {
      int overflow = 0;
      const long long number =  // NOLINT: Python's type
          PyLong_AsLongLongAndOverflow(object, &overflow);
      if (overflow != 0) return false;
      key_.push_back('i');
      AppendBytes(number, &key_);
    } else if (PyFloat_CheckExact(object)) {
      key_.push_back('d');
      AppendBytes(PyFloat_AS_DOUBLE(object),
                  &key_);  // distinguishes -0.0 and 0.0
    } else if (PyUnicode_CheckExact(object)) {
      Py_ssize_t size = 0;
      const char* const text = PyUnicode_AsUTF8AndSize(object, &size);
      if (text == nullptr) {  // lone surrogates have no UTF-8
        PyErr_Clear();
        return false;
      }
      key_.push_back('s');
      AppendText({text, static_cast<size_t>(size)}, &key_);
    } else if (PyBytes_CheckExact(object)) {
      key_.push_back('y');
      AppendText({PyBytes_AS_STRING(object),
                  static_cast<size_t>(PyBytes_GET_SIZE(object))},
                 &key_);
    } else if (PyTuple_CheckExact(object) || PyList_CheckExact(object) ||
               THPSize_Check(object)) {
      return AppendSequence(object);
    } else if (THPDtype_Check(object)) {
      key_.push_back('e');
      AppendBytes(reinterpret_cast<THPDtype*>(object)->scalar_type, &key_);
    } else if (THPDevice_Check(object)) {
      const c10::Device device = reinterpret_cast<THPDevice*>(object)->device;
      key_.push_back('v');
      AppendBytes(device.type(), &key_);
      AppendBytes(device.index(), &key_);
    } else if (THPLayout_Check(object)) {
      key_.push_back('l');
      AppendBytes(reinterpret_cast<THPLayout*>(object)->layout, &key_);
    } else if (THPMemoryFormat_Check(object)) {
      key_.push_back('m');
      AppendBytes(reinterpret_cast<THPMemoryFormat*>(object)->memory_format,
                  &key_);
    } else if (THPVariable_CheckExact(object) &&
               THPVariable_Unpack(object).device().is_xla()) {
      return AppendOperand(value);
    } else {
      return AppendOther(value);
    }
    return true;
  }

  py::bytes Bytes() const { return key_; }

 private:
  bool AppendSequence(PyObject* sequence) {
    PyObject** const items = PySequence_Fast_ITEMS(sequence);
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
    key_.push_back(PyList_CheckExact(sequence) ? 'L' : 'U');
    AppendBytes(size, &key_);
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!Append(items[i])) return false;
    }
    return true;
  }

  bool AppendOperand(py::handle value) {
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    if (!operands_.is_none()) {
      if (c10::GradMode::is_enabled() && tensor.requires_grad()) return false;
      operands_.cast<py::list>().append(value);
    }
    return AppendTensor(tensor, &key_);
  }

  bool AppendOther(py::handle value) {
    if (other_.is_none()) return false;
    const py::object known = other_(value);
    if (known.is_none()) return false;
    key_.push_back('o');
    return Append(known);
  }

  const py::object operands_;
  const py::object other_;
  std::string key_;
};

}  // namespace

py::object CallKey(const py::tuple& values, const py::object& operands,
                   const py::object& other) {
  KeyOfValues key(operands, other);
  if (!key.Append(values)) return py::none();
  return key.Bytes();
}

}  // namespace torch_xla_ext
