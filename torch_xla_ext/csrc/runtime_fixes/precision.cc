#include "torch_xla_ext/csrc/runtime_fixes/precision.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {

namespace instruction = hlo::instruction;
namespace precision_config = hlo::precision_config;
namespace {

constexpr uint64_t kDefault = 0;  // of xla::PrecisionConfig::Precision

// Whether a product or convolution has a precision of its own.
bool IsSet(const ProtobufMessage& product) {
  const ProtobufMessage config(product.Bytes(instruction::kPrecisionConfig));
  if (config.Has(precision_config::kAlgorithm)) return true;
  const std::vector<uint64_t> precisions =
      config.Numbers(precision_config::kOperandPrecision);
  return std::any_of(precisions.begin(), precisions.end(),
                     [](uint64_t one) { return one != kDefault; });
}

bool NeedsPrecision(const ProtobufMessage& one) {
  const std::string_view opcode = one.Bytes(instruction::kOpcode);
  return (opcode == "dot" || opcode == "convolution") && !IsSet(one);
}

class Precision : public ProgramPass {
 public:
  Precision(const std::string& serialized, const Precisions& precisions)
      : ProgramPass(serialized, "precision"), precisions_(precisions) {}

 private:
  void LookAt(const ProtobufMessage& one) override {
    is_needed_ = is_needed_ || NeedsPrecision(one);
  }
  bool IsNeeded() const override { return is_needed_; }

  void Change(ProtobufMessage* one) override {
    if (!NeedsPrecision(*one)) return;
    const bool is_dot = one->Bytes(instruction::kOpcode) == "dot";
    const uint64_t precision = !IsOfFloat32(*one) ? precisions_.other
                               : is_dot           ? precisions_.float32_product
                                        : precisions_.float32_convolution;
    if (precision == kDefault) return;
    is_changed_ = true;
    ProtobufMessage config;
    config.SetNumbers(precision_config::kOperandPrecision,
                      {precision, precision});
    one->SetBytes(instruction::kPrecisionConfig, config.Serialize());
  }

  // Whether it multiplies float32, or complex numbers of two.
  bool IsOfFloat32(const ProtobufMessage& product) const {
    const std::vector<uint64_t> operands =
        product.Numbers(instruction::kOperandIds);
    return std::all_of(operands.begin(), operands.end(), [&](uint64_t id) {
      const uint64_t type =
          ProtobufMessage(shapes_.at(id)).Number(hlo::shape::kElementType);
      return type == hlo::kF32 || type == hlo::kC64;
    });
  }

  const Precisions precisions_;
  bool is_needed_ = false;
};

}  // namespace

std::optional<std::string> SetPrecision(const std::string& module,
                                        const Precisions& precisions) {
  return Precision(module, precisions).Run();
}

}  // namespace torch_xla_ext
