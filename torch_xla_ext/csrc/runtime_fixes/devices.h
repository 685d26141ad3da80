// Looks up devices by number or name, also under SPMD, where the device
// "SPMD:0" stands for all. The front library and patches/ call these functions.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DEVICES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DEVICES_H_

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_xla_ext {

// Throws if there is no device `xla:number` among `count`. Upstream's error is
// that of std::vector::at.
inline void CheckDeviceExists(size_t number, size_t count, bool is_spmd) {
  if (number < count) return;
  const std::string device = "there is no device xla:" + std::to_string(number);
  if (is_spmd) {
    throw std::out_of_range(
        device +
        ": after use_spmd(), all devices of this process are the one device "
        "xla:0, and mark_sharding divides tensors among them");
  }
  throw std::out_of_range(device + ": this process has " +
                          std::to_string(count) + ", from xla:0 on");
}

// Throws if an argument of a program on `device` is on `other`. Upstream's
// error names XLA's devices.
inline void CheckIsOn(const std::string& device, const std::string& other) {
  if (device == other) return;
  const auto name = [](const std::string& text) {
    return "xla" + text.substr(text.find(':'));
  };
  throw std::runtime_error(
      "Expected all tensors to be on the same device, but found at least two "
      "devices, " +
      name(device) + " and " + name(other) +
      "! Please move one of them with .to().");
}

// A device that represents all devices in queries of common properties, such as
// the kind.
inline std::string AnyOf(const std::string& device,
                         const std::vector<std::string>& local_devices) {
  return device == "SPMD:0" ? local_devices.at(0) : device;
}

// Throws if data with this sharding, a serialized xla::OpSharding, cannot be
// read: inside a region of manual sharding, each device has a different value.
// XLA would abort the process when it gathers the values.
inline void CheckIsReadable(const std::string& sharding) {
  constexpr char kManual[] = "\x08\x04";  // its field `type`
  if (sharding.compare(0, 2, kManual) != 0) return;
  throw std::runtime_error(
      "a tensor inside a region of manual sharding has a different value on "
      "each device, and cannot be read: pass it to disable_manual_sharding "
      "first, "
      "and read the result");
}

// The memory of a device; under SPMD, of the one with the least free memory, on
// which a program fails first. Throws if `get_stats` fails, as it does for the
// CPU.
template <typename GetMemoryInfo>
auto MemoryInfoOf(const std::string& device,
                  const std::vector<std::string>& local_devices,
                  GetMemoryInfo get_stats) {
  const auto get = [&](const std::string& one) {
    try {
      return get_stats(one);
    } catch (const std::exception& error) {
      if (std::string_view(error.what()).find("UNIMPLEMENTED") ==
          std::string_view::npos) {
        throw;
      }
      throw std::runtime_error(
          "get_memory_info: XLA does not report how much "
          "memory the device " +
          one + " uses");
    }
  };
  auto fullest = get(AnyOf(device, local_devices));
  if (device != "SPMD:0") return fullest;
  for (size_t i = 1; i < local_devices.size(); ++i) {
    auto info = get(local_devices[i]);
    if (info.bytes_limit - info.bytes_used <
        fullest.bytes_limit - fullest.bytes_used) {
      fullest = std::move(info);
    }
  }
  return fullest;
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DEVICES_H_
