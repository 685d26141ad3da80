#include "tests/pjrt_shim/testing.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>

namespace {

std::atomic<int> failures{0};

}  // namespace

void Expect(bool condition, const char* file, int line, const char* text) {
  if (condition) return;
  std::fprintf(stderr, "%s:%d: expected %s\n", file, line, text);
  ++failures;
}

void ExpectText(const std::string& text, const std::string& part,
                const char* file, int line) {
  if (text.find(part) != std::string::npos) return;
  std::fprintf(stderr, "%s:%d: expected \"%s\" in \"%s\"\n", file, line,
               part.c_str(), text.c_str());
  ++failures;
}

std::string Thrown(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

FakeObservations* Observations(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<FakeObservations* (*)()>(
      dlsym(library, "GetFakeObservations"))();
}

std::string Text(const PJRT_Api* api, PJRT_Error* error) {
  PJRT_Error_Message_Args message = {};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::string text(message.message, message.message_size);
  PJRT_Error_Destroy_Args destroy = {};
  destroy.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  api->PJRT_Error_Destroy(&destroy);
  return text;
}

int main(int argc, char** argv) {
  const auto test = argc == 3 ? kCases.find(argv[1]) : kCases.end();
  if (test == kCases.end()) {
    std::fprintf(stderr, "usage: %s CASE PLUGIN\n", argv[0]);
    return 2;
  }
  test->second(argv[2]);
  std::printf("%d failed\n", failures.load());
  return failures == 0 ? 0 : 1;
}
