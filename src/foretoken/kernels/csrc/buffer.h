// Memory for numbers on the way, which grows. It begins with a line of the cache; much of it lies in huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace foretoken {

// Where pages are small, each of hundreds of rows lies in another one, and the processor knows the places of few.
template <class T>
struct InLines {
  using value_type = T;

  static constexpr std::size_t kLine = 64, kHugePage = 2 << 20;

  InLines() = default;
  template <class U>
  InLines(const InLines<U>&) {}

  static constexpr std::size_t whole(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
  // What a buffer of so many bytes begins with a multiple of.
  static std::size_t unit(std::size_t bytes) { return bytes < 2 * kHugePage ? kLine : kHugePage; }

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T), unit = this->unit(bytes);
    void* at = ::operator new(whole(bytes, unit), std::align_val_t(unit));
#ifdef __linux__
    // a last page that is not full stays small
    if (unit == kHugePage) madvise(at, bytes / unit * unit, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(at);
  }
  void deallocate(T* at, std::size_t count) { ::operator delete(at, std::align_val_t(unit(count * sizeof(T)))); }

  bool operator==(const InLines&) const { return true; }
  bool operator!=(const InLines&) const { return false; }
};

template <class T>
using Buffer = std::vector<T, InLines<T>>;

template <class V>
void at_least(V& v, std::int64_t n) {
  if (static_cast<std::int64_t>(v.size()) < n) v.resize(static_cast<std::size_t>(n));
}

}  // namespace foretoken
