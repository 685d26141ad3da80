// Calls FFI entries of kernels as XLA does, and also with calls that XLA's
// compiler would not make. There are two kernels: one on a stream, one with
// parameters of each kind.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "torch_xla_ext/kernel.h"
#include "xla/ffi/api/ffi.h"  // its traits are taken, too

struct XLA_FFI_Error {
  std::string text;
};

using cudaStream_t = struct TestStream*;

namespace {

using torch_xla_ext::Buffer;
using torch_xla_ext::F32;
using torch_xla_ext::Result;
using torch_xla_ext::Status;

int failures = 0;

void Expect(bool is_true, const char* what, const std::string& got) {
  if (is_true) return;
  std::fprintf(stderr, "expected %s, got \"%s\"\n", what, got.c_str());
  ++failures;
}

struct RangeParams {
  int32_t low;
  static constexpr auto Fields() {
    return torch_xla_ext::MakeFields(
        torch_xla_ext::Field("low", &RangeParams::low));
  }
};

struct Params {
  double factor;
  bool negate;
  std::string_view mode;
  std::vector<int64_t> shifts;
  RangeParams range;
  static constexpr auto Fields() {
    using torch_xla_ext::Field;
    return torch_xla_ext::MakeFields(
        Field("factor", &Params::factor), Field("negate", &Params::negate),
        Field("mode", &Params::mode), Field("shifts", &Params::shifts),
        Field("range", &Params::range));
  }
};

constexpr torch_xla_ext::Signature kWithParams = torch_xla_ext::ParseSignature(
    "TestWithParams(x: F32[n], y?: F32[n]) -> (out: F32[n])");
constexpr torch_xla_ext::Signature kOnStream =
    torch_xla_ext::ParseSignature("TestOnStream(x: F32[n]) -> (out: F32[n])");

std::string launched;

Status WithParams(Buffer<F32> x, std::optional<Buffer<F32>> y, Result<F32> out,
                  const Params& params) {
  out.data()[0] = x.data()[0];
  launched = std::to_string(params.factor) + (params.negate ? " - " : " + ") +
             std::string(params.mode);
  for (const int64_t shift : params.shifts) {
    launched += " " + std::to_string(shift);
  }
  launched += " " + std::to_string(params.range.low) + (y ? " y" : "");
  return Status::Ok();
}

Status OnStream(cudaStream_t stream, Buffer<F32>, Result<F32>) {
  launched = stream == nullptr ? "no stream" : "stream";
  return Status::Ok();
}

}  // namespace

XLA_KERNEL_HOST(TestWithParams, kWithParams, WithParams,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(TestOnStream, kOnStream, OnStream,
                xla::ffi::Traits::kCmdBufferCompatible);

namespace {

bool has_stream = true;

const XLA_FFI_Api* Api() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api api = {};
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return new XLA_FFI_Error{args->message};
    };
    api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      args->message = args->error->text.c_str();
    };
    api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) {
      delete args->error;
    };
    api.XLA_FFI_Stream_Get =
        [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
      static int stream;
      if (!has_stream) return new XLA_FFI_Error{"this is a CPU"};
      args->stream = &stream;
      return nullptr;
    };
    return api;
  }();
  return &api;
}

struct Attribute;
using Attributes = std::map<std::string, Attribute>;
struct Attribute {
  std::variant<double, int64_t, int32_t, bool, std::string,
               std::vector<int64_t>, Attributes>
      value;
};

// XLA's structures of the attributes; they live as long as this object.
class FfiAttributes {
 public:
  explicit FfiAttributes(const Attributes& attributes) {
    for (const auto& [name, attribute] : attributes) {
      names_.push_back(std::make_unique<XLA_FFI_ByteSpan>(
          XLA_FFI_ByteSpan{name.data(), name.size()}));
      name_pointers_.push_back(names_.back().get());
      std::visit([this](const auto& value) { Add(value); }, attribute.value);
    }
    all_.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
    all_.size = static_cast<int64_t>(types_.size());
    all_.types = types_.data();
    all_.names = name_pointers_.data();
    all_.attrs = values_.data();
  }
  const XLA_FFI_Attrs& all() const { return all_; }

 private:
  template <typename T>
  void* Keep(T value) {
    auto kept = std::make_shared<T>(std::move(value));
    kept_.push_back(kept);
    return kept.get();
  }
  void Add(XLA_FFI_AttrType type, void* value) {
    types_.push_back(type);
    values_.push_back(value);
  }
  template <typename T>
  void Add(const T& number) {
    Add(XLA_FFI_AttrType_SCALAR,
        Keep(XLA_FFI_Scalar{torch_xla_ext::internal::NumberType<T>(),
                            Keep(number)}));
  }
  void Add(const std::string& text) {
    Add(XLA_FFI_AttrType_STRING,
        Keep(XLA_FFI_ByteSpan{text.data(), text.size()}));
  }
  void Add(const std::vector<int64_t>& numbers) {
    Add(XLA_FFI_AttrType_ARRAY,
        Keep(XLA_FFI_Array{XLA_FFI_DataType_S64, numbers.size(),
                           const_cast<int64_t*>(numbers.data())}));
  }
  void Add(const Attributes& inner) {
    auto kept = std::make_shared<FfiAttributes>(inner);
    kept_.push_back(kept);
    Add(XLA_FFI_AttrType_DICTIONARY, &kept->all_);
  }

  std::vector<std::unique_ptr<XLA_FFI_ByteSpan>> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> values_;
  std::vector<std::shared_ptr<void>> kept_;
  XLA_FFI_Attrs all_ = {};
};

// The fields that differ between calls.
struct Call {
  size_t frame_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  XLA_FFI_ExecutionStage stage = XLA_FFI_ExecutionStage_EXECUTE;
  int operands = 1;
  XLA_FFI_ArgType operand_type = XLA_FFI_ArgType_BUFFER;
  int results = 1;
  Attributes attributes;
};

// Returns a text about the launch, or the error.
std::string Run(XLA_FFI_Handler* entry, const Call& call) {
  float numbers[2] = {3, 5};
  int64_t dims[1] = {2};
  XLA_FFI_Buffer buffer = {};
  buffer.struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
  buffer.dtype = XLA_FFI_DataType_F32;
  buffer.data = numbers;
  buffer.rank = 1;
  buffer.dims = dims;
  std::vector<void*> buffers(4, &buffer);
  std::vector<XLA_FFI_ArgType> operand_types(4, call.operand_type);
  std::vector<XLA_FFI_RetType> result_types(4, XLA_FFI_RetType_BUFFER);
  const FfiAttributes attributes(call.attributes);
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = call.frame_size;
  frame.api = Api();
  frame.stage = call.stage;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, call.operands,
                operand_types.data(), buffers.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, call.results,
                result_types.data(), buffers.data()};
  frame.attrs = attributes.all();
  launched = "nothing";
  const std::unique_ptr<XLA_FFI_Error> error(entry(&frame));
  return error == nullptr ? launched : error->text;
}

void ExpectRun(XLA_FFI_Handler* entry, const Call& call, const char* text) {
  const std::string got = Run(entry, call);
  Expect(got == text, text, got);
}

void TestMetadata(XLA_FFI_Handler* entry) {
  XLA_FFI_Metadata metadata = {};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE,
                              XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = {};
  frame.api = Api();
  frame.extension_start = &extension.extension_base;
  Expect(entry(&frame) == nullptr, "the metadata", "an error");
  Expect(metadata.api_version.major_version == XLA_FFI_API_MAJOR &&
             metadata.api_version.minor_version == XLA_FFI_API_MINOR,
         "the version of the headers", "another one");
  Expect(metadata.traits == XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE,
         "one trait", std::to_string(metadata.traits));
}

void TestParams() {
  const Attributes good = {
      {"factor", {0.5}},
      {"negate", {true}},
      {"mode", {std::string("fast")}},
      {"shifts", {std::vector<int64_t>{7, -8}}},
      {"range", {Attributes{{"low", {int32_t{4}}}}}},
      {"absent_operands", {int64_t{2}}},
  };
  XLA_FFI_Handler* const entry = &TestWithParamsHostFfi;
  ExpectRun(entry, {.attributes = good}, "0.500000 - fast 7 -8 4");
  const auto with = [&](const std::string& name, Attribute attribute) {
    Attributes attributes = good;
    attributes[name] = std::move(attribute);
    return Call{.attributes = attributes};
  };
  Call call = with("absent_operands", {int64_t{0}});
  call.operands = 2;
  ExpectRun(entry, call, "0.500000 - fast 7 -8 4 y");
  ExpectRun(entry, with("shifts", {std::vector<int64_t>{}}),
            "0.500000 - fast 4");
  ExpectRun(entry, with("factor", {int64_t{1}}),
            "TestWithParams: attribute factor: expected f64 but got i64");
  ExpectRun(entry, with("factor", {std::vector<int64_t>{1}}),
            "TestWithParams: attribute factor: expected f64 but got i64[]");
  ExpectRun(entry, with("shifts", {int64_t{1}}),
            "TestWithParams: attribute shifts: expected i64[] but got i64");
  ExpectRun(entry, with("mode", {false}),
            "TestWithParams: attribute mode: expected str but got bool");
  ExpectRun(entry, with("negate", {std::string("no")}),
            "TestWithParams: attribute negate: expected bool but got str");
  ExpectRun(entry, with("negate", {Attributes{}}),
            "TestWithParams: attribute negate: expected bool but got a "
            "dictionary");
  ExpectRun(entry, with("range", {0.5}),
            "TestWithParams: attribute range: expected {low: i32} but got f64");
  ExpectRun(entry, with("range", {Attributes{}}),
            "TestWithParams: attribute range.low: i32 is missing");
  ExpectRun(entry,
            with("range",
                 {Attributes{{"high", {int32_t{9}}}, {"low", {int32_t{4}}}}}),
            "TestWithParams: attribute range: expected {low: i32} but got "
            "other attributes, too");
  ExpectRun(entry, with("scale", {0.5}),
            "TestWithParams: attributes: expected params(factor: f64, negate: "
            "bool, mode: str, shifts: i64[], range: {low: i32}) but got 1 "
            "more attributes");
  ExpectRun(entry, with("absent_operands", {int64_t{1}}),
            "TestWithParams: attribute absent_operands: operand 0 (x) is not "
            "optional");
  ExpectRun(entry, with("absent_operands", {int64_t{8}}),
            "TestWithParams: attribute absent_operands: there are no such "
            "operands");
}

void TestFrames() {
  XLA_FFI_Handler* const entry = &TestOnStreamFfi;
  ExpectRun(entry, {}, "stream");
  has_stream = false;
  ExpectRun(entry, {}, "TestOnStream: XLA has no stream: this is a CPU");
  has_stream = true;
  ExpectRun(entry, {.operands = 0},
            "TestOnStream: expected 1 operands but got 0");
  ExpectRun(entry, {.operands = 2},
            "TestOnStream: expected 1 operands but got 2");
  ExpectRun(entry, {.results = 2},
            "TestOnStream: expected 1 results but got 2");
  ExpectRun(entry, {.operand_type = static_cast<XLA_FFI_ArgType>(2)},
            "TestOnStream: operand 0 (x): expected an array");
  ExpectRun(entry, {.stage = XLA_FFI_ExecutionStage_INITIALIZE},
            "TestOnStream: expected a call to execute, but got stage 2");
  const std::string got = Run(entry, {.frame_size = 8});
  Expect(got.find("XLA is older than this kernel") != std::string::npos,
         "an error about the size", got);
}

}  // namespace

int main() {
  TestMetadata(&TestWithParamsHostFfi);
  TestMetadata(&TestOnStreamFfi);
  TestParams();
  TestFrames();
  return failures == 0 ? 0 : 1;
}
