// Reads a payload's bytes, for untyped_payload.h and params.h.
#ifndef TORCH_XLA_EXT_BYTE_READER_H_
#define TORCH_XLA_EXT_BYTE_READER_H_

#include <cstddef>
#include <cstring>

namespace [[gnu::visibility("hidden")]] torch_xla_ext {
namespace internal {

// Reads values from memory and never beyond its end.
class ByteReader {
 public:
  ByteReader(const char* data, size_t size) : data_(data), left_(size) {}

  size_t left() const { return left_; }

  template <typename T>
  bool Read(T* value) {
    if (left_ < sizeof(T)) return false;
    std::memcpy(value, data_, sizeof(T));
    Skip(sizeof(T));
    return true;
  }
  // Null if fewer than `size` bytes are left.
  const char* Take(size_t size) {
    if (left_ < size) return nullptr;
    const char* taken = data_;
    Skip(size);
    return taken;
  }

 private:
  void Skip(size_t size) {
    data_ += size;
    left_ -= size;
  }

  const char* data_;
  size_t left_;
};

}  // namespace internal
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_BYTE_READER_H_
