// bf16 with AMX tiles, for real and emulated ones. A tile of weights is 16 rows of 64 bytes as they lie in the file: one
// tile product adds 32 inputs of 16 outputs for up to 16 rows, with even and odd inputs summed apart (Intel's documented
// order of tdpbf16ps), which is the format's own order.
//
// Packed: rows in groups of 16; for each group, for each 32 inputs, a tile of 16 pairs by `columns` rows.

#include <algorithm>

namespace {

inline int64_t columns_of(int64_t n) { return n < 16 ? n : 16; }

std::size_t bytes_bf16(int64_t n, int64_t k) {
  return static_cast<std::size_t>((n + 15) / 16 * columns_of(n) * padded(k, 32)) * 2;
}

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  const int64_t columns = columns_of(n), wide = padded(k, 32);
  std::uint16_t* out = static_cast<std::uint16_t*>(packed);
  const int64_t end = to == n ? (n + 15) / 16 * columns : to;  // whoever packs the last row fills up its group
  for (int64_t row = from; row < end; ++row) {
    std::uint16_t* column = out + row / 16 * columns * wide + row % 16 * 2;
    for (int64_t i = 0; i < wide; ++i) {
      const std::uint16_t value = row < n && i < k ? to_bf16(x[row * stride + i]) : static_cast<std::uint16_t>(0);
      column[i / 2 * columns * 2 + (i & 1)] = value;
    }
  }
}

// Groups of 16 rows at a time: as many as there are tiles for their sums.
constexpr int kGroups = 6;

template <class T, int G>
void linear_groups(const void* const* weights, int64_t distance, int64_t k, const std::uint16_t* packed, int64_t columns,
                   int64_t left, float* tile) {
  const int64_t wide = padded(k, 32);
  T tiles(static_cast<int>(columns));
  tiles.template zero<G>();
  for (int64_t block = 0; block * 32 < k; ++block) {
    const int64_t rest = k - block * 32;
    alignas(64) char lines[16 * 64];
    if (distance && rest >= 32) {
      tiles.load_weights(static_cast<const char*>(weights[0]) + block * 64, distance);
    } else {
      for (int i = 0; i < 16; ++i) {
        std::memset(lines + i * 64, 0, 64);
        std::memcpy(lines + i * 64, static_cast<const char*>(weights[i]) + block * 64,
                    static_cast<std::size_t>(rest < 32 ? rest : 32) * 2);
      }
      tiles.load_weights(lines, 64);
    }
    tiles.template multiply<G>(packed + block * 32 * columns, columns * wide, columns * 4);
  }
  alignas(64) float sums[16 * 16];
  for (int g = 0; g < G; ++g) {
    tiles.store(g, sums, columns * 4);
    for (int64_t row = 0; row < columns && g * 16 + row < left; ++row) {
      for (int m = 0; m < kTile; ++m) tile[(g * 16 + row) * kTile + m] = sums[m * columns + row];
    }
  }
}

template <class T>
void linear_tiles(const void* const* weights, int64_t k, const void* packed, int64_t n, float* tile) {
  int64_t distance = static_cast<const char*>(weights[1]) - static_cast<const char*>(weights[0]);
  for (int i = 1; i < 16; ++i) {
    if (static_cast<const char*>(weights[i]) - static_cast<const char*>(weights[0]) != i * distance) distance = 0;
  }
  const int64_t columns = columns_of(n), wide = padded(k, 32);
  for (int64_t row = 0; row < n; row += 16 * kGroups) {
    const std::uint16_t* x = static_cast<const std::uint16_t*>(packed) + row / 16 * columns * wide;
    const int64_t left = n - row;
    float* to = tile + row * kTile;
    switch ((left + 15) / 16) {
      case 1: linear_groups<T, 1>(weights, distance, k, x, columns, left, to); break;
      case 2: linear_groups<T, 2>(weights, distance, k, x, columns, left, to); break;
      case 3: linear_groups<T, 3>(weights, distance, k, x, columns, left, to); break;
      case 4: linear_groups<T, 4>(weights, distance, k, x, columns, left, to); break;
      case 5: linear_groups<T, 5>(weights, distance, k, x, columns, left, to); break;
      default: linear_groups<T, 6>(weights, distance, k, x, columns, left, to); break;
    }
  }
}

// -- low-bit weights: a tile is what their codes mean ----------------------------------------------------------------
// Here the rows are the left operand, 16 of them with 32 inputs each, and a block's values the right one: 16 pairs of
// inputs by 16 outputs, as they come from the codes. The sums are the same.
//
// Packed: rows in groups of 16; for each group, for each 32 inputs, a tile of `columns` rows by 32 inputs.

std::size_t bytes_values(int64_t n, int64_t k) { return bytes_bf16(n, k); }

void pack_values(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  const int64_t columns = columns_of(n), wide = padded(k, 32);
  std::uint16_t* out = static_cast<std::uint16_t*>(packed);
  const int64_t end = to == n ? (n + 15) / 16 * columns : to;  // whoever packs the last row fills up its group
  for (int64_t row = from; row < end; ++row) {
    std::uint16_t* group = out + row / 16 * columns * wide + row % 16 * 32;
    for (int64_t i = 0; i < wide; ++i) {
      group[i / 32 * columns * 32 + i % 32] =
          row < n && i < k ? to_bf16(x[row * stride + i]) : static_cast<std::uint16_t>(0);
    }
  }
}

template <class T, int G>
void values_groups(const Codes& w, int64_t k, const std::uint16_t* packed, int64_t columns, int64_t left, float* tile) {
  const int64_t wide = padded(k, 32);
  T tiles(static_cast<int>(columns), true);
  tiles.template zero<G>();
  for (int64_t block = 0; block * 32 < k; ++block) {
    V16 values[32];
    block_values(w, block, k - block * 32, values);
    alignas(64) std::int32_t pairs[16][16];
    for (int t = 0; t < 16; ++t) {
      const Ints both = plus(right<16>(as_ints(values[2 * t])), as_ints(values[2 * t + 1]));
      std::memcpy(pairs[t], &both, sizeof both);
    }
    tiles.load_weights(pairs, 64);
    tiles.template multiply<G>(packed + block * 32 * columns, columns * wide, 64);
  }
  alignas(64) float sums[16 * 16];
  for (int g = 0; g < G; ++g) {
    tiles.store(g, sums, 64);
    const int64_t rows = std::min(columns, left - g * 16);
    if (rows > 0) std::memcpy(tile + g * 16 * kTile, sums, static_cast<std::size_t>(rows) * kTile * 4);
  }
}

template <class T>
void values_tiles(const Codes& w, int64_t k, const void* packed, int64_t n, float* tile) {
  const int64_t columns = columns_of(n), wide = padded(k, 32);
  for (int64_t row = 0; row < n; row += 16 * kGroups) {
    const std::uint16_t* x = static_cast<const std::uint16_t*>(packed) + row / 16 * columns * wide;
    const int64_t left = n - row;
    float* to = tile + row * kTile;
    switch ((left + 15) / 16) {
      case 1: values_groups<T, 1>(w, k, x, columns, left, to); break;
      case 2: values_groups<T, 2>(w, k, x, columns, left, to); break;
      case 3: values_groups<T, 3>(w, k, x, columns, left, to); break;
      case 4: values_groups<T, 4>(w, k, x, columns, left, to); break;
      case 5: values_groups<T, 5>(w, k, x, columns, left, to); break;
      default: values_groups<T, 6>(w, k, x, columns, left, to); break;
    }
  }
}

}  // namespace
