// AMX for bf16, AVX-512 for the rest.
#define FORETOKEN_CODES_AHEAD (2 << 10)  // Intel's processors do better when half a page is fetched ahead, not a page
#define FORETOKEN_INT8_NEAR false  // not measured there

#include "vector_avx512.h"

#include "isa.inl"

#include "tiles_avx512.inl"

namespace {

struct Configuration {  // as the instruction reads it
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// What memory holds must be there before a tile is filled from it: gcc 12 declares less of it to be read than is.
inline void settle() { __asm__ volatile("" : : : "memory"); }

// Tiles 0 to 3 hold sums, of two blocks by two groups or of four blocks; 4 and 5 weights, 6 and 7 rows.
constexpr int sums_of(int block, int group) { return block < 2 ? 2 * block + group : 2 * block - 3; }

template <bool kRowsLeft>
class Tiles {
 public:
  explicit Tiles(int columns) {
    Configuration c;
    for (int i = 0; i < 8; ++i) {
      const bool of_weights = i == 4 || i == 5;
      c.rows[i] = static_cast<std::uint8_t>(kRowsLeft && !of_weights ? columns : 16);
      c.bytes[i] = static_cast<std::uint16_t>(kRowsLeft || of_weights ? 64 : columns * 4);
    }
    settle();
    _tile_loadconfig(&c);
    settle();
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int B, int G>
  void zero() {
    if constexpr (sums_of(B, G) == 0) _tile_zero(0);
    if constexpr (sums_of(B, G) == 1) _tile_zero(1);
    if constexpr (sums_of(B, G) == 2) _tile_zero(2);
    if constexpr (sums_of(B, G) == 3) _tile_zero(3);
  }
  template <int B, int G>
  void load(const float* from, int64_t stride) {
    settle();
    const int bytes = static_cast<int>(stride * 4);
    if constexpr (sums_of(B, G) == 0) _tile_loadd(0, from, bytes);
    if constexpr (sums_of(B, G) == 1) _tile_loadd(1, from, bytes);
    if constexpr (sums_of(B, G) == 2) _tile_loadd(2, from, bytes);
    if constexpr (sums_of(B, G) == 3) _tile_loadd(3, from, bytes);
  }
  template <int B, class Lines>
  void load_weights(Lines tile) {
    settle();
    if constexpr (B % 2 == 0) _tile_loadd(4, tile.from, tile.stride);
    if constexpr (B % 2 == 1) _tile_loadd(5, tile.from, tile.stride);
    settle();
  }
  template <int G, class Lines>
  void load_rows(Lines tile) {
    settle();
    if constexpr (G == 0) _tile_loadd(6, tile.from, tile.stride);
    if constexpr (G == 1) _tile_loadd(7, tile.from, tile.stride);
  }
  // As `load_rows`, but what the first cache holds stays there: weights, which meet all rows.
  template <int G, class Lines>
  void pass_rows(Lines tile) {
    settle();
    if constexpr (G == 0) _tile_stream_loadd(6, tile.from, tile.stride);
    if constexpr (G == 1) _tile_stream_loadd(7, tile.from, tile.stride);
  }
  template <int B, int G>
  void multiply() {
    if constexpr (kRowsLeft) {
      if constexpr (B == 0 && G == 0) _tile_dpbf16ps(0, 6, 4);
      if constexpr (B == 0 && G == 1) _tile_dpbf16ps(1, 7, 4);
      if constexpr (B == 1 && G == 0) _tile_dpbf16ps(2, 6, 5);
      if constexpr (B == 1 && G == 1) _tile_dpbf16ps(3, 7, 5);
      if constexpr (B == 2) _tile_dpbf16ps(1, 6, 4);
      if constexpr (B == 3) _tile_dpbf16ps(3, 6, 5);
    } else {
      if constexpr (B == 0 && G == 0) _tile_dpbf16ps(0, 4, 6);
      if constexpr (B == 0 && G == 1) _tile_dpbf16ps(1, 4, 7);
      if constexpr (B == 1 && G == 0) _tile_dpbf16ps(2, 5, 6);
      if constexpr (B == 1 && G == 1) _tile_dpbf16ps(3, 5, 7);
      if constexpr (B == 2) _tile_dpbf16ps(1, 4, 6);
      if constexpr (B == 3) _tile_dpbf16ps(3, 5, 6);
    }
  }
  // A tile that is stored costs 0.3 microseconds where none has been for 0.6, and else next to nothing (LOG.md).
  void keep_storing() {
    _tile_stored(5, unused_, 64);
    settle();
  }
  template <int B, int G>
  void store(float* to, int64_t stride) {
    if constexpr (sums_of(B, G) == 0) _tile_stored(0, to, static_cast<int>(stride * 4));
    if constexpr (sums_of(B, G) == 1) _tile_stored(1, to, static_cast<int>(stride * 4));
    if constexpr (sums_of(B, G) == 2) _tile_stored(2, to, static_cast<int>(stride * 4));
    if constexpr (sums_of(B, G) == 3) _tile_stored(3, to, static_cast<int>(stride * 4));
    settle();
  }

 private:
  alignas(64) char unused_[1024];
};

}  // namespace

#include "amx.inl"

const foretoken::Kernels* foretoken::kernels_amx() {
  static constexpr Kernels table = tiles_table("amx");
  return &table;
}
