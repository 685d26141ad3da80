#include "torch_xla_ext/csrc/graph/python_guard.h"

#include <cstdint>

namespace torch_xla_ext::graph {
namespace {

namespace py = pybind11;

// The referent of a weak reference, or null; any other object itself.
PyObject* Target(const py::object& reference) {
  if (!PyWeakref_Check(reference.ptr())) return reference.ptr();
  PyObject* const object = PyWeakref_GET_OBJECT(reference.ptr());
  return object == Py_None ? nullptr : object;
}

}  // namespace

constexpr uintptr_t kAnySize = UINTPTR_MAX;

struct PythonGuard::Node {
  enum Kind {
    kPlain,       // equal to `object` and of the same type
    kSame,        // the referent of the weak reference `object`
    kAddress,     // at `address`
    kSequence,    // a list or tuple of `address` items, of the type `object`
    kDictionary,  // of `address` items in their order, or of kAnySize and any
                  // order, of the type `object`
    kAttributes,  // like kSame, of the type at `address`, and items of its
                  // __dict__
    kFunction,    // like kSame, and parts of a function, or attributes
    kParts,       // has attributes
    kCall,        // object(value) is true
    kAbsent,      // no item
    kPairs,       // a dictionary of `address` items in their order, with two
             // children for each item: a node for the key and one for the value
  };
  Kind kind;
  py::object object;
  uintptr_t address = 0;
  std::vector<py::object> keys;
  std::vector<std::unique_ptr<Node>> children;
};

struct PythonGuard::Root {
  py::object reference;
  std::unique_ptr<Node> node;
};

PythonGuard::PythonGuard(PythonGuard&&) = default;
PythonGuard::~PythonGuard() = default;

PythonGuard::PythonGuard(const py::list& roots) {
  for (const py::handle& root : roots) {
    const auto pair = py::reinterpret_borrow<py::tuple>(root);
    roots_.push_back({pair[0], MakeNode(py::tuple(pair[1]))});
  }
}

std::unique_ptr<PythonGuard::Node> PythonGuard::MakeNode(
    const py::tuple& description) {
  auto node = std::make_unique<Node>();
  node->kind = static_cast<Node::Kind>(py::cast<int>(description[0]));
  node->object = description[1];
  node->address = py::cast<uintptr_t>(description[2]);
  for (const py::handle& item : description[3]) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    node->keys.push_back(pair[0]);
    node->children.push_back(MakeNode(py::tuple(pair[1])));
  }
  return node;
}

// A child's value, a reference borrowed from `value` or from `owner`; null if
// there is none.
PyObject* PythonGuard::Get(const Node& node, PyObject* value, size_t child,
                           py::object* owner) {
  PyObject* const key = node.keys[child].ptr();
  switch (node.kind) {
    case Node::kSequence: {
      const Py_ssize_t index = PyLong_AsSsize_t(key);
      return PyList_Check(value) ? PyList_GET_ITEM(value, index)
                                 : PyTuple_GET_ITEM(value, index);
    }
    case Node::kDictionary:
      return PyDict_GetItemWithError(value, key);
    case Node::kAttributes:
      return PyDict_GetItemWithError(owner->ptr(), key);
    case Node::kFunction: {
      if (PyLong_Check(key)) {  // an index into its closure
        PyObject* const closure = PyFunction_GetClosure(value);
        const Py_ssize_t index = PyLong_AsSsize_t(key);
        if (closure == nullptr || index >= PyTuple_GET_SIZE(closure)) {
          return nullptr;
        }
        return PyCell_GET(PyTuple_GET_ITEM(closure, index));
      }
      if (PyTuple_Check(key)) {  // the name of a global
        return PyDict_GetItemWithError(PyFunction_GetGlobals(value),
                                       PyTuple_GET_ITEM(key, 0));
      }
      break;
    }
    default:
      break;
  }
  *owner = py::reinterpret_steal<py::object>(PyObject_GetAttr(value, key));
  return owner->ptr();
}

// All items of a dictionary, in their order.
bool PythonGuard::CheckItems(const Node& node, PyObject* value) {
  PyObject *key, *item;
  Py_ssize_t position = 0;
  for (size_t i = 0; i < node.children.size(); ++i) {
    if (!PyDict_Next(value, &position, &key, &item)) return false;
    PyObject* const expected = node.keys[i].ptr();
    if (key != expected &&
        PyObject_RichCompareBool(key, expected, Py_EQ) != 1) {
      return false;
    }
    if (!Check(*node.children[i], item)) return false;
  }
  return true;
}

// The keys are compared by nodes, too.
bool PythonGuard::CheckPairs(const Node& node, PyObject* value) {
  if (!PyDict_Check(value) ||
      PyDict_Size(value) != static_cast<Py_ssize_t>(node.address)) {
    return false;
  }
  PyObject *key, *item;
  Py_ssize_t position = 0;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    if (!PyDict_Next(value, &position, &key, &item) ||
        !Check(*node.children[i], key) || !Check(*node.children[i + 1], item)) {
      return false;
    }
  }
  return true;
}

bool PythonGuard::Check(const Node& node, PyObject* value) {
  switch (node.kind) {
    case Node::kPlain:
      return value == node.object.ptr() ||
             (Py_TYPE(value) == Py_TYPE(node.object.ptr()) &&
              PyObject_RichCompareBool(value, node.object.ptr(), Py_EQ) == 1);
    case Node::kSame:
      return value == Target(node.object);
    case Node::kAddress:
      return reinterpret_cast<uintptr_t>(value) == node.address;
    case Node::kCall: {
      const auto result = py::reinterpret_steal<py::object>(
          PyObject_CallOneArg(node.object.ptr(), value));
      return result.ptr() == Py_True;
    }
    case Node::kSequence:
    case Node::kDictionary: {
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != node.object.ptr() ||
          (node.address != kAnySize &&
           PyObject_Size(value) != static_cast<Py_ssize_t>(node.address))) {
        return false;
      }
      if (node.address != kAnySize && PyDict_CheckExact(value)) {
        return CheckItems(node, value);
      }
      break;
    }
    case Node::kAttributes:
      if (reinterpret_cast<uintptr_t>(Py_TYPE(value)) != node.address) {
        return false;
      }
      [[fallthrough]];
    case Node::kFunction:
      if (value != Target(node.object)) return false;
      break;
    case Node::kParts:
      break;
    case Node::kAbsent:
      return false;
    case Node::kPairs:
      return CheckPairs(node, value);
  }
  py::object owner;
  if (node.kind == Node::kAttributes && !node.children.empty()) {
    owner = py::reinterpret_steal<py::object>(
        PyObject_GenericGetDict(value, nullptr));
    if (!owner) return false;
  }
  for (size_t i = 0; i < node.children.size(); ++i) {
    PyObject* const child = Get(node, value, i, &owner);
    if (child == nullptr) {
      if (node.children[i]->kind != Node::kAbsent) return false;
    } else if (!Check(*node.children[i], child)) {
      return false;
    }
  }
  return true;
}

bool PythonGuard::IsSame() const {
  for (const Root& root : roots_) {
    PyObject* const value = Target(root.reference);
    if (value == nullptr || !Check(*root.node, value)) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

}  // namespace torch_xla_ext::graph
