// Checks in C++ whether Python objects are unchanged, by the rules of
// torch_xla_ext/python/torch_xla_ext/graph/guards.py.
//
// guards.py describes the state as nested tuples; this class compares each
// value in some ten nanoseconds. If it finds a difference, guards.py decides,
// and names the value.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_PYTHON_GUARD_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_PYTHON_GUARD_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

namespace torch_xla_ext::graph {

class [[gnu::visibility("hidden")]] PythonGuard {
 public:
  // Args:
  //   roots: pairs (value, node), the value directly or as a weak reference.
  explicit PythonGuard(const pybind11::list& roots);
  PythonGuard(PythonGuard&&);
  ~PythonGuard();

  // Never throws.
  bool IsSame() const;

 private:
  struct Node;
  struct Root;

  static std::unique_ptr<Node> MakeNode(const pybind11::tuple& description);
  static PyObject* Get(const Node& node, PyObject* value, size_t child,
                       pybind11::object* owner);
  static bool CheckItems(const Node& node, PyObject* value);
  static bool CheckPairs(const Node& node, PyObject* value);
  static bool Check(const Node& node, PyObject* value);

  std::vector<Root> roots_;
};

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_PYTHON_GUARD_H_
