// The AMX instruction set on tiles of plain C++, which follow Intel's documented arithmetic: what tests of that
// instruction set run where the machine has no AMX. Never chosen by itself.
#define FORETOKEN_WIDE_DOT_EMULATED  // products of bytes, which every processor with AMX has
#include "vector_generic.h"

#include "isa.inl"

namespace {

inline void line_of(const float* x, int64_t left, std::uint16_t* line) {
  for (int64_t i = 0; i < left && i < 32; ++i) line[i] = to_bf16(x[i]);
}

inline void narrow(const float* x, std::uint16_t* line) { line_of(x, 32, line); }

inline void round_line(V16 first, V16 second, std::uint16_t* line) {
  float x[32];
  store(x, first);
  store(x + 16, second);
  narrow(x, line);
}

inline void pair_up(const std::uint16_t* even, const std::uint16_t* odd, char* line) {
  for (int i = 0; i < 16; ++i) {
    std::memcpy(line + 4 * i, even + i, 2);
    std::memcpy(line + 4 * i + 2, odd + i, 2);
  }
}

template <Format>
struct Pairs {
  void put(const Codes& w, int64_t step, int64_t left, char* tile) const {
    V16 values[32];
    block_values(w, step, left, values);
    for (int t = 0; t < 16; ++t) {
      const Ints both = plus(right<16>(as_ints(values[2 * t])), as_ints(values[2 * t + 1]));
      std::memcpy(tile + t * 64, &both, sizeof both);
    }
  }
};

inline void transpose(float* x) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float other = x[i * 16 + j];
      x[i * 16 + j] = x[j * 16 + i];
      x[j * 16 + i] = other;
    }
  }
}

template <bool kRowsLeft>
class Tiles {
 public:
  explicit Tiles(int columns) : columns_(columns) {}

  template <int B, int G>
  void zero() {
    std::memset(sums_[B][G], 0, sizeof sums_[B][G]);
  }
  template <int B, int G>
  void load(const float* from, int64_t stride) {
    for (int i = 0; i < 16; ++i) std::memcpy(sums_[B][G][i], from + i * stride, 64);
  }
  template <int G, class Lines>
  void load_rows(Lines tile) {
    fill(tile, kRowsLeft ? columns_ : 16, kRowsLeft ? 64 : columns_ * 4, rows_[G]);
  }
  template <int G, class Lines>
  void pass_rows(Lines tile) {
    load_rows<G>(tile);
  }
  template <int B, class Lines>
  void load_weights(Lines tile) {
    fill(tile, 16, 64, weights_[B]);
  }
  template <int B, int G>
  void multiply() {
    if (kRowsLeft) {
      product(sums_[B][G], rows_[G], columns_, weights_[B], 16);
    } else {
      product(sums_[B][G], weights_[B], 16, rows_[G], columns_);
    }
  }
  void keep_storing() {}
  template <int B, int G>
  void store(float* to, int64_t stride) {
    const int lines = kRowsLeft ? columns_ : 16, numbers = kRowsLeft ? 16 : columns_;
    for (int i = 0; i < lines; ++i) std::memcpy(to + i * stride, sums_[B][G][i], static_cast<std::size_t>(numbers) * 4);
  }

 private:
  template <class Lines>
  static void fill(Lines tile, int lines, int bytes, std::uint16_t (*to)[32]) {
    for (int i = 0; i < lines; ++i) {
      std::memcpy(to[i], static_cast<const char*>(tile.from) + i * tile.stride, static_cast<std::size_t>(bytes));
    }
  }
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
  std::uint16_t weights_[4][16][32], rows_[2][16][32];
  float sums_[4][2][16][16];
};

}  // namespace

#include "amx.inl"

const foretoken::Kernels* foretoken::kernels_amx_emulated() {
  static constexpr Kernels table = tiles_table("amx-emulated");
  return &table;
}
