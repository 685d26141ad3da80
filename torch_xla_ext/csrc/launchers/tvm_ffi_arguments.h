// Makes the arguments of a TVM-FFI function from those of XLA's call.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_ARGUMENTS_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/launchers/tvm_ffi_abi.h"
#include "torch_xla_ext/csrc/launchers/tvm_ffi_function.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext::tvm_ffi {

// A target lists its function's arguments, in order, as words; this is one of
// them. xla_kernels/tvm_ffi.py writes them.
struct Word {
  enum Kind {
    kOperands,   // "args": all operands
    kResults,    // "rets": all results
    kOperand,    // "args.0"
    kResult,     // "rets.1"
    kAttribute,  // "attrs.eps": the call's attribute eps
    kNone,       // "none"
  };
  Kind kind;
  size_t index = 0;
  std::string name;

  // Throws std::invalid_argument for any other word.
  static Word Parse(const std::string& text);
};

// The arguments of one call, and the objects that they point to.
class Arguments {
 public:
  // Throws std::invalid_argument if a word names nothing in the call, or if no
  // word names one of the call's operands, results or attributes.
  Arguments(const std::vector<Word>& words, Device device,
            const xla::ffi::RemainingArgs& args,
            const xla::ffi::RemainingRets& rets, const XLA_FFI_Attrs& attrs);

  const std::vector<Any>& values() const { return values_; }

  // Whether a result's buffer begins at `data`.
  bool HasResultAt(const void* data) const;

 private:
  std::string_view NameOfAttribute(size_t index) const;
  xla::ffi::AnyBuffer Operand(size_t index) const;
  bool IsAbsent(size_t operand) const { return absent_ >> operand & 1; }

  void ReadAbsentOperands();
  void Add(const Word& word);
  void AddOperand(size_t index);
  void AddResult(size_t index);
  void AddTensor(const xla::ffi::AnyBuffer& buffer);
  void AddNone();
  void AddObject(Reference object);
  void AddAttribute(const std::string& name);
  void AddValue(XLA_FFI_AttrType type, const void* attribute);
  void AddString(const XLA_FFI_ByteSpan& bytes);
  void AddArray(const XLA_FFI_Array& array);
  void CheckAllAreUsed() const;

  const xla::ffi::RemainingArgs& args_;
  const xla::ffi::RemainingRets& rets_;
  const XLA_FFI_Attrs& attrs_;
  Device device_;
  uint64_t absent_ = 0;  // a bit for each operand
  size_t num_operands_;  // including absent ones
  std::vector<bool> used_operands_;
  std::vector<bool> used_results_;
  std::vector<bool> used_attributes_;
  // The objects that values_ point to.
  std::vector<Reference> objects_;
  std::deque<std::string> texts_;  // a deque keeps addresses stable
  std::vector<Any> values_;
};

}  // namespace torch_xla_ext::tvm_ffi

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_ARGUMENTS_H_
