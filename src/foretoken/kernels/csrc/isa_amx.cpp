// AMX for bf16, AVX-512 for the rest.
#include "vector_avx512.h"

#include "isa.inl"

#include "amx.inl"

namespace {

struct Configuration {  // as the instruction reads it
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// What memory holds must be there before a tile is filled from it: gcc 12 declares less of it to be read than is.
inline void settle() { __asm__ volatile("" : : : "memory"); }

// Tiles 0 to 5 hold sums, 7 the left operand of a product, 6 the right one. The weights are left and the rows right, or
// with `rows_left` the other way round.
class Tiles {
 public:
  explicit Tiles(int columns, bool rows_left = false) : rows_left_(rows_left) {
    Configuration c;
    for (int i = 0; i < 8; ++i) {
      c.rows[i] = static_cast<std::uint8_t>(rows_left && i != 6 ? columns : 16);
      c.bytes[i] = static_cast<std::uint16_t>(i == 7 || rows_left ? 64 : columns * 4);
    }
    settle();
    _tile_loadconfig(&c);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int G>
  void zero() {
    _tile_zero(0);
    if (G > 1) _tile_zero(1);
    if (G > 2) _tile_zero(2);
    if (G > 3) _tile_zero(3);
    if (G > 4) _tile_zero(4);
    if (G > 5) _tile_zero(5);
  }
  void load_weights(const void* from, int64_t distance) {
    settle();
    load(!rows_left_, from, distance);
  }

  template <int G>
  void multiply(const std::uint16_t* rows, int64_t group, int64_t stride) {
    step<0>(rows, stride);
    if (G > 1) step<1>(rows + group, stride);
    if (G > 2) step<2>(rows + 2 * group, stride);
    if (G > 3) step<3>(rows + 3 * group, stride);
    if (G > 4) step<4>(rows + 4 * group, stride);
    if (G > 5) step<5>(rows + 5 * group, stride);
  }
  void store(int group, float* to, int64_t stride) {
    switch (group) {
      case 0: _tile_stored(0, to, stride); break;
      case 1: _tile_stored(1, to, stride); break;
      case 2: _tile_stored(2, to, stride); break;
      case 3: _tile_stored(3, to, stride); break;
      case 4: _tile_stored(4, to, stride); break;
      default: _tile_stored(5, to, stride); break;
    }
    settle();
  }

 private:
  template <int I>
  void step(const std::uint16_t* rows, int64_t stride) {
    load(rows_left_, rows, stride);
    if constexpr (I == 0) _tile_dpbf16ps(0, 7, 6);
    if constexpr (I == 1) _tile_dpbf16ps(1, 7, 6);
    if constexpr (I == 2) _tile_dpbf16ps(2, 7, 6);
    if constexpr (I == 3) _tile_dpbf16ps(3, 7, 6);
    if constexpr (I == 4) _tile_dpbf16ps(4, 7, 6);
    if constexpr (I == 5) _tile_dpbf16ps(5, 7, 6);
  }

  static void load(bool left, const void* from, int64_t stride) {
    if (left) {
      _tile_loadd(7, from, stride);
    } else {
      _tile_loadd(6, from, stride);
    }
  }

  bool rows_left_;
};

void linear_bf16(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  linear_tiles<Tiles>(weights, k, packed, n, tile);
}

void linear_values(const Codes& w, int64_t k, const void* packed, int64_t n, float* tile) {
  values_tiles<Tiles>(w, k, packed, n, tile);
}

}  // namespace

const foretoken::Kernels* foretoken::kernels_amx() {
  static constexpr Kernels table = table_of("amx", nullptr, nullptr);
  return &table;
}
