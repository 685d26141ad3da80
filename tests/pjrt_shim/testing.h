// Checks, and the calls of a plugin, for the tests of the PJRT shim.
//
//   TEST CASE PLUGIN
//
// A process can use only one plugin, so each case is a separate process.
#ifndef TESTS_PJRT_SHIM_TESTING_H_
#define TESTS_PJRT_SHIM_TESTING_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "tests/pjrt_shim/fake_plugin.h"
#include "xla/pjrt/c/pjrt_c_api.h"

// Gets the path of the plugin.
using TestCase = std::function<void(const std::string&)>;

// The cases of a test, by their names; each test defines them.
extern const std::map<std::string, TestCase> kCases;

void Expect(bool condition, const char* file, int line, const char* text);
#define EXPECT(condition) Expect(condition, __FILE__, __LINE__, #condition)

void ExpectText(const std::string& text, const std::string& part,
                const char* file, int line);
#define EXPECT_TEXT(text, part) ExpectText(text, part, __FILE__, __LINE__)

// The text of what `function` throws; "" if it throws nothing.
std::string Thrown(const std::function<void()>& function);

// The record of the calls of the plugin at `path`, which must be loaded.
FakeObservations* Observations(const std::string& path);

// The text of an error, which is destroyed.
std::string Text(const PJRT_Api* api, PJRT_Error* error);

template <typename Args>
Args Zero(size_t struct_size) {
  Args args = {};
  args.struct_size = struct_size;
  return args;
}
#define ARGS(name) Zero<name>(name##_STRUCT_SIZE)

#endif  // TESTS_PJRT_SHIM_TESTING_H_
