// AMX: rows as tiles. Part of amx.inl.

namespace {

constexpr int64_t kTileBytes = 1024;  // 16 lines of 64 bytes

constexpr int64_t kFewRows = 48;  // up to so many wait for memory more than for arithmetic

// Whether products are made in slices of inputs. n: of all packed rows, so that packing and multiplying agree. Weights of up to
// 256 inputs are mostly keys, which attention fetches itself, so that fewer rows are enough.
constexpr bool in_slices(int64_t n, int64_t k) { return n > kFewRows || (n > 32 && k <= 256); }

struct Lines {  // of a tile in memory
  const void* from;
  int64_t stride;  // bytes from a line to the next
};

inline int64_t columns_of(int64_t n) { return n < 16 ? n : 16; }
inline int64_t groups_of(int64_t n) { return (n + 15) / 16; }

// Packed: in groups of 16 rows; for each group, for each 32 inputs, a tile. On the right, that is 16 lines of a pair of
// inputs of each row; on the left, a line of 32 inputs for each row. Many rows are packed in slices of inputs: first all
// groups' tiles of the first slice. Those rows are always on the left.

constexpr int64_t kSlice = 16;  // steps

// Which tile it is in a packed slice.
inline int64_t tile_in_slices(int64_t group, int64_t groups, int64_t step, int64_t steps) {
  const int64_t from = step / kSlice * kSlice;
  return from * groups + group * std::min(kSlice, steps - from) + step - from;
}

struct RowTiles {  // of some packed rows
  const std::uint16_t* from;
  int64_t n, columns, steps, stride;

  Lines tile(int64_t group, int64_t step) const { return {from + (group * steps + step) * 32 * columns, stride}; }
};

template <bool kRowsLeft>
RowTiles tiles_of(const PackedRows& rows, int64_t k) {
  const int64_t columns = columns_of(rows.n);
  const std::uint16_t* from = static_cast<const std::uint16_t*>(rows.packed) + rows.from / 16 * blocks_of(k) * 32 * columns;
  return {from, rows.count(), columns, blocks_of(k), kRowsLeft ? 64 : columns * 4};
}

// The inputs of one step of rows [from, to), which lie in one group. x: where the first row's inputs of this step are.
template <bool kRowsLeft>
void pack_tile(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, int64_t step, void* packed) {
  const int64_t group = from / 16, steps = blocks_of(k), columns = columns_of(n);
  const int64_t at = in_slices(n, k) ? tile_in_slices(group, groups_of(n), step, steps) : group * steps + step;
  std::uint16_t* tile = static_cast<std::uint16_t*>(packed) + at * 32 * columns;
  for (int64_t row = from; row < to; ++row) {
    alignas(64) std::uint16_t line[32] = {};
    if (row < n) line_of(x + (row - from) * stride, k - step * 32, line);
    if (kRowsLeft) {
      std::memcpy(tile + row % 16 * 32, line, sizeof line);
    } else {
      for (int pair = 0; pair < 16; ++pair) std::memcpy(tile + (pair * columns + row % 16) * 2, line + 2 * pair, 4);
    }
  }
}

// use(from, to) for each group with some of the rows [from, to). Whoever packs the last row fills up its group.
template <class Use>
void each_group(int64_t from, int64_t to, int64_t n, Use use) {
  const int64_t end = to == n ? groups_of(n) * columns_of(n) : to;
  for (int64_t first = from, next = from; first < end; first = next) use(first, next = std::min(end, first / 16 * 16 + 16));
}

template <bool kRowsLeft>
void pack_rows(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  each_group(from, to, n, [&](int64_t first, int64_t next) {
    for (int64_t step = 0; step < blocks_of(k); ++step) {
      pack_tile<kRowsLeft>(x + first * stride + step * 32, stride, first, next, n, k, step, packed);
    }
  });
}

void pack_step(const Results& results, const PackedRows& rows, int64_t k, int64_t step, void* packed) {
  alignas(64) float x[16][32];
  each_group(rows.from, rows.to, rows.n, [&](int64_t first, int64_t next) {
    for (int64_t row = first; row < std::min(next, rows.n); ++row) {
      for (int64_t block = 0; block < 2; ++block) {
        std::memcpy(x[row - first] + block * kTile, results.line(row - rows.from, block), kTile * 4);
      }
    }
    pack_tile<true>(x[0], 32, first, next, rows.n, k, step, packed);
  });
}

std::size_t bytes_bf16(int64_t n, int64_t k) {
  return static_cast<std::size_t>(groups_of(n) * columns_of(n) * padded(k, 32)) * 2;
}

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  (in_slices(n, k) ? pack_rows<true> : pack_rows<false>)(x, stride, from, to, n, k, packed);
}

std::size_t bytes_values(int64_t n, int64_t k) { return bytes_bf16(n, k); }

void pack_values(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  pack_rows<true>(x, stride, from, to, n, k, packed);
}

}  // namespace
