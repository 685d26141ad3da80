// The serialized topology, whose maps have no order.
#include "torch_xla_ext/csrc/pjrt_shim/topology.h"

#include <string>

#include "tests/pjrt_shim/testing.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

namespace {

using torch_xla_ext::pjrt_shim::Load;

// A bytes field with a number below 16 and a short value.
std::string Field(int number, const std::string& value) {
  return std::string{static_cast<char>(number << 3 | 2),
                     static_cast<char>(value.size())} +
         value;
}

// An entry of a map, which is field 3.
std::string Entry(const std::string& key, const std::string& value) {
  return Field(3, Field(1, key) + Field(2, value));
}

void TestCanonical(const std::string&) {
  using torch_xla_ext::pjrt_shim::Canonical;
  const std::string a = Entry("a", "9"), b = Entry("b", "8");
  const std::string number = "\x08\x96\x01", name = Field(2, "sm_90");
  EXPECT(Canonical(number + b + a + name) == number + a + b + name);
  // Two adjacent maps, and one inside another's value.
  const std::string other = Field(4, Field(1, "z") + Field(2, "0"));
  EXPECT(Canonical(b + a + other) == a + b + other);
  EXPECT(Canonical(Entry("k", b + a)) == Entry("k", a + b));
  EXPECT(Canonical(Entry("k", b + a) + a) == a + Entry("k", a + b));
  // Lists keep their order, and so do entries that are separated by another
  // field.
  const std::string list = Field(3, "y") + Field(3, "x");
  EXPECT(Canonical(list) == list);
  EXPECT(Canonical(b + name + a) == b + name + a);
  // Fixed-length numbers.
  const std::string fixed = std::string("\x0d\x12\x06\x0a\x01", 5) +
                            std::string("\x11\x01\x02\x03\x04\0\0\0\0", 9);
  EXPECT(Canonical(fixed + b + a) == fixed + a + b);
  // Anything that is not a message, or is truncated, is left unchanged.
  const std::string whole = b + a;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string part = whole.substr(0, size);
    EXPECT(Canonical(part) == part);
  }
  for (const std::string& text : {std::string("{\"a\": 1}"),
                                  std::string(99, '\xff'), std::string(1, '\0'),
                                  std::string("\x0a\xff\xff\xff\xff\xff\xff\xff"
                                              "\xff\xff\x01")}) {
    EXPECT(Canonical(text + whole) == text + whole);
  }
  std::string deep;
  for (int i = 0; i < 20; ++i) deep = Field(1, deep);
  EXPECT(Canonical(deep) == deep);
}

void TestTopology(const std::string& path) {
  Load(path);
  std::string before;
  for (int i = 0; i < 3; ++i) {
    auto args = ARGS(PJRT_TopologyDescription_Serialize_Args);
    EXPECT(GetPjrtApi()->PJRT_TopologyDescription_Serialize(&args) == nullptr);
    const std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
    EXPECT(bytes.size() == 16);
    EXPECT(i == 0 || bytes == before);
    before = bytes;
    args.serialized_topology_deleter(args.serialized_topology);
    EXPECT(Observations(path)->topologies == 0);
  }
}

}  // namespace

const std::map<std::string, TestCase> kCases = {
    {"canonical", TestCanonical},
    {"topology", TestTopology},
};
