// The AMX instruction set on tiles of plain C++, which follow Intel's documented arithmetic: what tests of that
// instruction set run where the machine has no AMX. Never chosen by itself.
#include "vector_generic.h"

#include "isa.inl"

#include "amx.inl"

namespace {

class Tiles {
 public:
  explicit Tiles(int columns, bool rows_left = false) : columns_(columns), rows_left_(rows_left) {}

  template <int G>
  void zero() {
    std::memset(sums_, 0, sizeof sums_);
  }
  void load_weights(const void* from, int64_t distance) {
    for (int i = 0; i < 16; ++i) std::memcpy(weights_[i], static_cast<const char*>(from) + i * distance, 64);
  }
  template <int G>
  void multiply(const std::uint16_t* rows, int64_t group, int64_t stride) {
    std::uint16_t tile[16][32];
    for (int g = 0; g < G; ++g) {
      for (int i = 0; i < (rows_left_ ? columns_ : 16); ++i) {
        const int bytes = rows_left_ ? 64 : columns_ * 4;
        std::memcpy(tile[i], reinterpret_cast<const char*>(rows + g * group) + i * stride, static_cast<std::size_t>(bytes));
      }
      if (rows_left_) {
        product(sums_[g], tile, columns_, weights_, 16);
      } else {
        product(sums_[g], weights_, 16, tile, columns_);
      }
    }
  }
  void store(int group, float* to, int64_t stride) {
    const int rows = rows_left_ ? columns_ : 16, columns = rows_left_ ? 16 : columns_;
    for (int m = 0; m < rows; ++m) {
      std::memcpy(reinterpret_cast<char*>(to) + m * stride, sums_[group][m], static_cast<std::size_t>(columns) * 4);
    }
  }

 private:
  // left: rows of pairs; right: a row for each pair, of `columns` pairs.
  static void product(float (*sums)[16], const std::uint16_t (*left)[32], int rows, const std::uint16_t (*right)[32],
                      int columns) {
    for (int m = 0; m < rows; ++m) {
      for (int n = 0; n < columns; ++n) {
        float even = 0.0f, odd = 0.0f;
        for (int pair = 0; pair < 16; ++pair) {
          even = fused_bf16(from_bf16(left[m][2 * pair]), from_bf16(right[pair][2 * n]), even);
          odd = fused_bf16(from_bf16(left[m][2 * pair + 1]), from_bf16(right[pair][2 * n + 1]), odd);
        }
        sums[m][n] += even + odd;
      }
    }
  }

  int columns_;
  bool rows_left_;
  std::uint16_t weights_[16][32];
  float sums_[kGroups][16][16];
};

void linear_bf16(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  linear_tiles<Tiles>(weights, k, packed, n, tile);
}

void linear_values(const Codes& w, int64_t k, const void* packed, int64_t n, float* tile) {
  values_tiles<Tiles>(w, k, packed, n, tile);
}

}  // namespace

const foretoken::Kernels* foretoken::kernels_amx_emulated() {
  static constexpr Kernels table = table_of("amx-emulated", nullptr, nullptr);
  return &table;
}
