// A record of the fake plugin's calls.
#ifndef TESTS_PJRT_SHIM_FAKE_PLUGIN_H_
#define TESTS_PJRT_SHIM_FAKE_PLUGIN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

struct FakeObservations {
  int refusals = 0;  // of structures that were too short
  int executions = 0;
  size_t options_size = 0;
  int launch_id = 0;
  bool new_members_are_zero = true;
  int fingerprints = 0;
  int registrations = 0;
  char last_target[64] = {};
  // instantiate, prepare, initialize, execute, record
  void* last_functions[5] = {};
  int last_api = -1;
  uint32_t last_traits = 0;
  int probe_minor = 0;  // what the handler that takes the FFI says of itself
  char last_type[64] = {};
  int64_t last_type_id = -1;  // as it was passed
  void (*last_deleter)(void*) = nullptr;
  int profiles = 0;
  int topologies = 0;  // serialized, and not deleted yet
  // Set by a test: the time that an execution takes.
  std::atomic<int> execution_ms{0};
  std::atomic<bool> executes{false};
  std::atomic<int> transfers{0};
  std::atomic<int> transfers_meanwhile{0};  // while a program executes
  std::atomic<int> events{0};               // made, and not destroyed yet
  std::atomic<int> polls{0};                // of the last event
  // Set by a test: executions have failed when they are started, or go on.
  bool starts_fail = false;
  int buffers = 0;              // results, not destroyed yet
  std::string compile_options;  // of the last program
};

#endif  // TESTS_PJRT_SHIM_FAKE_PLUGIN_H_
