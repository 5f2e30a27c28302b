// bf16 with AMX tiles, for real and emulated ones. A tile product adds 32 inputs of 16 outputs for up to 16 rows, with even
// and odd inputs summed apart (Intel's documented order of tdpbf16ps), which is the format's own order.
//
// Two blocks of outputs meet two groups of rows at a time, or four blocks one group: each tile of rows that is fetched is
// multiplied several times, and memory is read in several streams.
//
// Who includes this file has defined `Tiles<kRowsLeft>`: sums of those blocks and groups, two tiles for weights, which the
// blocks take in turn, and a tile for the rows of each group. Rows are the right operand of a product, or with kRowsLeft
// the left one. Also defined are `line_of`, which rounds the `left` inputs that are there to bf16 and leaves the rest of the
// line, which is zero; `transpose`, of 16 by 16 floats in place; and `Pairs`, which puts a step's codes into a tile on the
// right.

#include <algorithm>
#include <type_traits>

namespace {

constexpr int64_t kTileBytes = 1024;  // 16 lines of 64 bytes

struct Lines {  // of a tile in memory
  const void* from;
  int64_t stride;  // bytes from a line to the next
};

inline int64_t columns_of(int64_t n) { return n < 16 ? n : 16; }
inline int64_t groups_of(int64_t n) { return (n + 15) / 16; }

// -- rows -----------------------------------------------------------------------------------------------------------
// Packed: in groups of 16 rows; for each group, for each 32 inputs, a tile. On the right, that is 16 lines of a pair of
// inputs of each row; on the left, a line of 32 inputs for each row.

struct PackedRows {
  const std::uint16_t* from;
  int64_t n, columns, steps, stride;

  Lines tile(int64_t group, int64_t step) const { return {from + (group * steps + step) * 32 * columns, stride}; }
};

template <bool kRowsLeft>
PackedRows rows_at(const void* packed, int64_t n, int64_t k) {
  return {static_cast<const std::uint16_t*>(packed), n, columns_of(n), blocks_of(k), kRowsLeft ? 64 : columns_of(n) * 4};
}

template <bool kRowsLeft>
void pack_rows(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  const int64_t columns = columns_of(n), steps = blocks_of(k);
  const int64_t end = to == n ? groups_of(n) * columns : to;  // whoever packs the last row fills up its group
  for (int64_t row = from; row < end; ++row) {
    for (int64_t step = 0; step < steps; ++step) {
      alignas(64) std::uint16_t line[32] = {};
      if (row < n) line_of(x + row * stride + step * 32, k - step * 32, line);
      std::uint16_t* tile = static_cast<std::uint16_t*>(packed) + (row / 16 * steps + step) * 32 * columns;
      if (kRowsLeft) {
        std::memcpy(tile + row % 16 * 32, line, sizeof line);
      } else {
        for (int pair = 0; pair < 16; ++pair) std::memcpy(tile + (pair * columns + row % 16) * 2, line + 2 * pair, 4);
      }
    }
  }
}

std::size_t bytes_bf16(int64_t n, int64_t k) {
  return static_cast<std::size_t>(groups_of(n) * columns_of(n) * padded(k, 32)) * 2;
}

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  pack_rows<false>(x, stride, from, to, n, k, packed);
}

std::size_t bytes_values(int64_t n, int64_t k) { return bytes_bf16(n, k); }

void pack_values(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  pack_rows<true>(x, stride, from, to, n, k, packed);
}

// -- products -------------------------------------------------------------------------------------------------------

// Calls use(0), use(1), ... below kCount, each as a constant.
template <int kCount, class Use>
inline void each(Use use) {
  if constexpr (kCount > 0) use(std::integral_constant<int, 0>{});
  if constexpr (kCount > 1) use(std::integral_constant<int, 1>{});
  if constexpr (kCount > 2) use(std::integral_constant<int, 2>{});
  if constexpr (kCount > 3) use(std::integral_constant<int, 3>{});
}

// The products of kBlocks blocks, with which `weights` has begun, and kGroups groups of rows from `group` on. `to`: the
// first block's results. What the loop needs comes by value: gcc would read members behind a reference anew at each step.
template <int kBlocks, int kGroups, class T, class Weights>
void multiply(T& tiles, Weights weights, PackedRows rows, int64_t group, float* to) {
  each<kBlocks>([&](auto b) { each<kGroups>([&](auto g) { tiles.template zero<b.value, g.value>(); }); });
  for (int64_t at = 0; at < rows.steps + Weights::kLate; ++at) {
    if (at < rows.steps) each<kBlocks>([&](auto b) { weights.prepare(b.value, at); });
    const int64_t step = at - Weights::kLate;
    if (step < 0) continue;
    each<kGroups>([&](auto g) { tiles.template load_rows<g.value>(rows.tile(group + g.value, step)); });
    each<kBlocks>([&](auto b) {
      tiles.template load_weights<b.value>(weights.tile(b.value, step));
      each<kGroups>([&](auto g) { tiles.template multiply<b.value, g.value>(); });
    });
  }
  each<kBlocks>([&](auto b) {
    each<kGroups>([&](auto g) {
      alignas(64) float sums[16 * kTile];
      tiles.template store<b.value, g.value>(sums);
      if (!Weights::kRowsLeft) transpose(sums);
      const int64_t first = (group + g.value) * 16, count = std::min<int64_t>(16, rows.n - first);
      std::memcpy(to + (b.value * rows.n + first) * kTile, sums, static_cast<std::size_t>(count) * kTile * 4);
    });
  });
}

constexpr int64_t kNear = 512 << 10;  // bytes of weights that stay in the second cache while all rows meet them

template <class Weights>
void multiply_all(Weights weights, int64_t blocks, int64_t k, const void* packed, int64_t n, float* tile) {
  const PackedRows rows = rows_at<Weights::kRowsLeft>(packed, n, k);
  const int64_t groups = groups_of(n), bytes = std::max<int64_t>(1, rows.steps) * kTileBytes;
  const int64_t near = std::max<int64_t>(4, kNear / bytes / 4 * 4);
  Tiles<Weights::kRowsLeft> tiles(static_cast<int>(rows.columns));
  auto some = [&](auto kBlocks, auto kGroups, int64_t block, int64_t group) {
    weights.begin(block, kBlocks);
    multiply<kBlocks.value, kGroups.value>(tiles, weights, rows, group, tile + block * n * kTile);
  };
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, Weights::kMost> kMost;
  for (int64_t from = 0; from < blocks; from += near) {
    const int64_t to = std::min(blocks, from + near);
    int64_t group = 0;
    for (; group + 2 <= groups; group += 2) {
      int64_t block = from;
      for (; block + 2 <= to; block += 2) some(kTwo, kTwo, block, group);
      if (block < to) some(kOne, kTwo, block, group);
    }
    if (group == groups) continue;
    int64_t block = from;
    for (; block + kMost <= to; block += kMost) some(kMost, kOne, block, group);
    for (; block + 2 <= to; block += 2) some(kTwo, kOne, block, group);
    if (block < to) some(kOne, kOne, block, group);
  }
}

// -- weights: `begin` with up to kMost blocks; then for each step `prepare`, and kLate steps later `tile` ----------------

// Lines of 64 bytes as they lie in rows anywhere: with four blocks, memory would be read in too many places at once.
class InRows {
 public:
  static constexpr bool kRowsLeft = false;
  static constexpr int kMost = 2, kLate = 0;

  struct alignas(64) Room {
    char lines[kMost][kTileBytes];
  };

  InRows(const void* const* rows, int64_t k, Room* room) : rows_(rows), k_(k), room_(room) {}

  void begin(int64_t block, int64_t blocks) {
    for (int64_t i = 0; i < blocks; ++i) {
      at_[i] = rows_ + (block + i) * kTile;
      distance_[i] = row(i, 1) - row(i, 0);
      for (int j = 2; j < 16; ++j) {
        if (row(i, j) - row(i, 0) != j * distance_[i]) distance_[i] = 0;
      }
    }
  }
  void prepare(int, int64_t) {}
  Lines tile(int i, int64_t step) {
    const int64_t left = k_ - step * 32;
    if (distance_[i] && left >= 32) return {row(i, 0) + step * 64, distance_[i]};
    char* lines = room_->lines[i];
    for (int j = 0; j < 16; ++j) {
      std::memset(lines + j * 64, 0, 64);
      std::memcpy(lines + j * 64, row(i, j) + step * 64, static_cast<std::size_t>(std::min<int64_t>(left, 32)) * 2);
    }
    return {lines, 64};
  }

 private:
  const char* row(int64_t i, int j) const { return static_cast<const char*>(at_[i][j]); }

  const void* const* rows_;
  int64_t k_;
  Room* room_;
  const void* const* at_[kMost] = {};
  int64_t distance_[kMost] = {};  // between rows; 0: they lie at unequal distances
};

// The layout of this instruction set: tile after tile, of 16 lines of a pair of inputs of each output.
class InTiles {
 public:
  static constexpr bool kRowsLeft = true;
  static constexpr int kMost = 4, kLate = 0;

  InTiles(const void* weights, int64_t k) : from_(static_cast<const char*>(weights)), bytes_(blocks_of(k) * kTileBytes) {}

  void begin(int64_t block, int64_t blocks) {
    at_ = from_ + block * bytes_;
    others_ = (blocks - 1) * bytes_;
  }
  // Fetches ahead; past the end of a block, the block that is read after it.
  void prepare(int i, int64_t step) const {
    const int64_t ahead = step * kTileBytes + kAhead;
    const char* next = at_ + i * bytes_ + ahead + (ahead < bytes_ ? 0 : others_);
    __asm__("" : "+r"(next));  // one address, from which all lines are reached
    for (int64_t line = 0; line < kTileBytes; line += 64) __builtin_prefetch(next + line, 0, 2);
  }
  Lines tile(int i, int64_t step) const { return {at_ + i * bytes_ + step * kTileBytes, 64}; }

 private:
  static constexpr int64_t kAhead = 2 << 10;  // bytes; into the second cache: farther is slower (LOG.md)

  const char* from_;
  int64_t bytes_;  // of a block
  const char* at_ = nullptr;
  int64_t others_ = 0;
};

// What codes mean, where F is mxfp4, int8, int4, or int2 for any other. Each tile is made two steps before it is multiplied, so that neither waits for the other.
template <Format F>
class Decoded {
 public:
  static constexpr bool kRowsLeft = true;
  static constexpr int kMost = 2, kLate = 2;

  struct alignas(64) Room {  // three are in use: one is written, one waits, one is read
    char tiles[kMost][4][kTileBytes];
  };

  Decoded(const Codes& codes, int64_t k, Room* room)
      : codes_(codes), k_(k), room_(room), each_(foretoken::block_bytes(codes.format)), bytes_(blocks_of(k) * each_) {}

  void begin(int64_t block, int64_t blocks) {
    for (int64_t i = 0; i < blocks; ++i) at_[i] = codes_at(codes_, block + i, k_);
    others_ = (blocks - 1) * bytes_;
    const int64_t scales = foretoken::scale_bytes(codes_.format, codes_.group, k_);
    const char* next = static_cast<const char*>(at_[0].scales) + blocks * scales;
    for (int64_t line = 0; line < blocks * scales; line += 64) __builtin_prefetch(next + line, 0, 2);
  }
  // Fetches ahead, too; past the end of a block, the block that is read after it.
  void prepare(int i, int64_t step) {
    if constexpr (F != Format::int2) {  // any other format's codes are fetched where they are decoded
      const int64_t ahead = step * each_ + FORETOKEN_CODES_AHEAD;
      const std::uint8_t* next = at_[i].codes + ahead + (ahead < bytes_ ? 0 : others_);
      __asm__("" : "+r"(next));  // one address, from which all lines are reached
      for (int64_t line = 0; line < each_; line += 64) __builtin_prefetch(next + line);
    }
    pairs_.put(at_[i], step, k_ - step * 32, room_->tiles[i][step % 4]);
  }
  Lines tile(int i, int64_t step) const { return {room_->tiles[i][step % 4], 64}; }

 private:
  Codes codes_;
  int64_t k_;
  Room* room_;
  Pairs<F> pairs_;
  int64_t each_, bytes_;  // of a step's codes, and of a block's
  Codes at_[kMost] = {};
  int64_t others_ = 0;
};

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const void* packed, int64_t n, float* tile) {
  InRows::Room room;
  multiply_all(InRows(weights, k, &room), blocks, k, packed, n, tile);
}

void repack(const void* const* weights, int64_t k, void* block) {
  for (int64_t step = 0; step < blocks_of(k); ++step) {
    alignas(64) float pairs[16 * 16];
    for (int i = 0; i < 16; ++i) std::memcpy(pairs + i * 16, static_cast<const char*>(weights[i]) + step * 64, 64);
    transpose(pairs);
    std::memcpy(static_cast<char*>(block) + step * kTileBytes, pairs, kTileBytes);
  }
}

void linear_repacked(const void* weights, int64_t blocks, int64_t k, const void* packed, int64_t n, float* tile) {
  multiply_all(InTiles(weights, k), blocks, k, packed, n, tile);
}

template <Format F>
void multiply_decoded(const Codes& w, int64_t blocks, int64_t k, const void* packed, int64_t n, float* tile) {
  typename Decoded<F>::Room room;
  multiply_all(Decoded<F>(w, k, &room), blocks, k, packed, n, tile);
}

void linear_values(const Codes& w, int64_t blocks, int64_t k, const void* packed, int64_t n, float* tile) {
  switch (w.format) {
    case Format::mxfp4: return multiply_decoded<Format::mxfp4>(w, blocks, k, packed, n, tile);
    case Format::int8: return multiply_decoded<Format::int8>(w, blocks, k, packed, n, tile);
    case Format::int4: return multiply_decoded<Format::int4>(w, blocks, k, packed, n, tile);
    default: return multiply_decoded<Format::int2>(w, blocks, k, packed, n, tile);
  }
}

constexpr int64_t kManyRows = 4;  // from which on a tile's products cost less than one row after the other (LOG.md)

constexpr foretoken::Kernels tiles_table(const char* name) {
  return table_of(name, foretoken::kTogether, kManyRows, repack, pack_values, linear_repacked);
}

}  // namespace
