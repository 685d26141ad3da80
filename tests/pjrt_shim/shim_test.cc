// Tests which plugins are loaded, and why others are refused.
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

#include <string>
#include <vector>

#include "tests/pjrt_shim/testing.h"

namespace {

using torch_xla_ext::pjrt_shim::Load;

void ExpectRefusal(const std::string& path,
                   const std::vector<std::string>& parts) {
  const std::string text = Thrown([&] { Load(path); });
  EXPECT_TEXT(text, path);
  for (const std::string& part : parts) EXPECT_TEXT(text, part);
  EXPECT(GetPjrtApi() == nullptr);
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"older",
     [](const std::string& path) {
       ExpectRefusal(path, {"has PJRT API 0.69", "needs 0.70 or newer",
                            "jax-cuda13-pjrt"});
     }},
    {"major",
     [](const std::string& path) {
       ExpectRefusal(path, {"has PJRT API 1.2", "of 0.x"});
     }},
    {"no_extension",
     [](const std::string& path) {
       ExpectRefusal(path, {"has no custom-call extension"});
     }},
    {"named_value",
     [](const std::string& path) {
       ExpectRefusal(path, {"PJRT_NamedValue has 64 bytes", "has 56"});
     }},
    {"short_table",
     [](const std::string& path) {
       ExpectRefusal(path, {"its table of functions has 900 bytes"});
     }},
    {"not_a_plugin",
     [](const std::string&) {
       ExpectRefusal("libm.so.6", {"does not export GetPjrtApi"});
       ExpectRefusal("/no/such/plugin.so",
                     {"cannot be loaded", "No such file"});
     }},
    {"second",
     [](const std::string& path) {
       EXPECT(Thrown([&] { Load(path); }).empty());
       EXPECT(Thrown([&] { Load(path); }).empty());
       EXPECT_TEXT(Thrown([] { Load("/other.so"); }),
                   "the process uses " + path + " already");
     }},
};
