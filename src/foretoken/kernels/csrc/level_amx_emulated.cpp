// The AMX level on tiles of plain C++, which follow Intel's documented arithmetic: what tests of that level run where the
// machine has no AMX. Never chosen by itself.
#include "vector_generic.h"

#include "level.inl"

#include "amx.inl"

namespace {

class Tiles {
 public:
  explicit Tiles(int columns) : columns_(columns) {}

  template <int G>
  void zero() {
    std::memset(sums_, 0, sizeof sums_);
  }
  void load_weights(const void* from, int64_t distance) {
    for (int i = 0; i < 16; ++i) std::memcpy(weights_[i], static_cast<const char*>(from) + i * distance, 64);
  }
  template <int G>
  void multiply(const std::uint16_t* rows, int64_t group, int64_t stride) {
    for (int g = 0; g < G; ++g) product(sums_[g], rows + g * group, stride);
  }
  void store(int group, float* to, int64_t stride) {
    for (int m = 0; m < 16; ++m) {
      std::memcpy(reinterpret_cast<char*>(to) + m * stride, sums_[group][m], static_cast<std::size_t>(columns_) * 4);
    }
  }

 private:
  void product(float (*sums)[16], const std::uint16_t* rows, int64_t stride) const {
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < columns_; ++n) {
        float even = 0.0f, odd = 0.0f;
        for (int pair = 0; pair < 16; ++pair) {
          const std::uint16_t* row = rows + pair * stride / 2 + 2 * n;
          even = fused_bf16(from_bf16(weights_[m][2 * pair]), from_bf16(row[0]), even);
          odd = fused_bf16(from_bf16(weights_[m][2 * pair + 1]), from_bf16(row[1]), odd);
        }
        sums[m][n] += even + odd;
      }
    }
  }

  int columns_;
  std::uint16_t weights_[16][32];
  float sums_[kGroups][16][16];
};

void linear_bf16(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  linear_tiles<Tiles>(weights, k, packed, n, tile);
}

}  // namespace

const foretoken::Kernels* foretoken::kernels_amx_emulated() {
  static const Kernels table = table_of("amx-emulated", nullptr, nullptr);
  return &table;
}
