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
constexpr int64_t kFew = 96;  // rows: with as many, memory is waited for, and `multiply_few` fetches it better

struct Lines {  // of a tile in memory
  const void* from;
  int64_t stride;  // bytes from a line to the next
};

inline int64_t columns_of(int64_t n) { return n < 16 ? n : 16; }
inline int64_t groups_of(int64_t n) { return (n + 15) / 16; }

// -- rows -----------------------------------------------------------------------------------------------------------
// Packed: in groups of 16 rows; for each group, for each 32 inputs, a tile. On the right, that is 16 lines of a pair of
// inputs of each row; on the left, a line of 32 inputs for each row. Many rows are packed in slices of inputs: first all
// groups' tiles of the first slice.

constexpr int64_t kSlice = 64;  // steps

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

template <bool kRowsLeft>
void pack_rows(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  const int64_t columns = columns_of(n), steps = blocks_of(k);
  const int64_t end = to == n ? groups_of(n) * columns : to;  // whoever packs the last row fills up its group
  for (int64_t first = from, next = from; first < end; first = next) {  // a group, tile after tile
    next = std::min(end, first / 16 * 16 + 16);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t group = first / 16, at = n > kFew ? tile_in_slices(group, groups_of(n), step, steps) : group * steps + step;
      std::uint16_t* tile = static_cast<std::uint16_t*>(packed) + at * 32 * columns;
      for (int64_t row = first; row < next; ++row) {
        alignas(64) std::uint16_t line[32] = {};
        if (row < n) line_of(x + row * stride + step * 32, k - step * 32, line);
        if (kRowsLeft) {
          std::memcpy(tile + row % 16 * 32, line, sizeof line);
        } else {
          for (int pair = 0; pair < 16; ++pair) std::memcpy(tile + (pair * columns + row % 16) * 2, line + 2 * pair, 4);
        }
      }
    }
  }
}

std::size_t bytes_bf16(int64_t n, int64_t k) {
  return static_cast<std::size_t>(groups_of(n) * columns_of(n) * padded(k, 32)) * 2;
}

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  (n > kFew ? pack_rows<true> : pack_rows<false>)(x, stride, from, to, n, k, packed);
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

// The products of kBlocks blocks, with which `weights` has begun, and kGroups groups of rows from `group` on. `results`: the
// first block's. What the loop needs comes by value: gcc would read members behind a reference anew at each step.
template <int kBlocks, int kGroups, class T, class Weights>
void multiply(T& tiles, Weights weights, RowTiles rows, int64_t group, Results results) {
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
      const int64_t first = (group + g.value) * 16, count = std::min<int64_t>(16, rows.n - first);
      const Results to{results.block(b.value).at(first), results.stride};
      if (Weights::kRowsLeft && count == rows.columns) return tiles.template store<b.value, g.value>(to.to, to.stride);
      alignas(64) float sums[16 * kTile];
      tiles.template store<b.value, g.value>(sums, kTile);
      if (!Weights::kRowsLeft) transpose(sums);
      for (int64_t row = 0; row < count; ++row) std::memcpy(to.at(row), sums + row * kTile, kTile * 4);
    });
  });
}

constexpr int64_t kNear = 512 << 10;  // bytes of weights that stay in the second cache while all rows meet them

template <class Weights>
void multiply_few(Weights weights, int64_t blocks, int64_t k, const PackedRows& packed, const Results& results) {
  const RowTiles rows = tiles_of<Weights::kRowsLeft>(packed, k);
  const int64_t groups = groups_of(rows.n), bytes = std::max<int64_t>(1, rows.steps) * kTileBytes;
  const int64_t near = std::max<int64_t>(4, kNear / bytes / 4 * 4);
  Tiles<Weights::kRowsLeft> tiles(static_cast<int>(rows.columns));
  auto some = [&](auto kBlocks, auto kGroups, int64_t block, int64_t group) {
    weights.begin(block, kBlocks);
    multiply<kBlocks.value, kGroups.value>(tiles, weights, rows, group, results.block(block));
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

// -- many rows ------------------------------------------------------------------------------------------------------
// A slice of the rows' inputs stays in the second cache while weights pass by, two blocks at a time. Between slices, sums
// wait where results go.

struct Slice {  // of two blocks' weights: tile after tile, `bytes` from one block to the other
  const char* from;
  int64_t bytes;
};

struct alignas(64) SliceRoom {
  char tiles[2][kSlice][kTileBytes];

  Slice slice() const { return {tiles[0][0], sizeof tiles[0]}; }
};

// Lines of the next two blocks' tiles, of which each two groups fetch a share.
struct Share {
  const char* from = nullptr;
  int64_t lines = 0;  // with each step
};

SliceRoom& slice_room() {
  static thread_local SliceRoom room;
  return room;
}

// Adds the products of a slice to the sums of kBlocks blocks and kGroups groups, or with the first slice begins them.
template <int kBlocks, int kGroups, class T>
void multiply_slice(T& tiles, Slice weights, const char* rows, int64_t steps, bool first, Results sums, Share next) {
  auto sum_of = [&](auto b, auto g) { return sums.block(b.value).at(g.value * 16); };
  each<kBlocks>([&](auto b) {
    each<kGroups>([&](auto g) {
      if (first) {
        tiles.template zero<b.value, g.value>();
      } else {
        tiles.template load<b.value, g.value>(sum_of(b, g), sums.stride);
      }
    });
  });
  const int64_t bytes = steps * kTileBytes;
  for (int64_t at = 0; at < bytes; at += kTileBytes) {
    each<kGroups>([&](auto g) { tiles.template load_rows<g.value>(Lines{rows + g.value * bytes + at, 64}); });
    for (int64_t i = 0; i < next.lines; ++i, next.from += 64) __builtin_prefetch(next.from, 0, 2);
    each<kBlocks>([&](auto b) {
      tiles.template load_weights<b.value>(Lines{weights.from + b.value * weights.bytes + at, 64});
      each<kGroups>([&](auto g) { tiles.template multiply<b.value, g.value>(); });
    });
  }
  each<kBlocks>([&](auto b) {
    each<kGroups>([&](auto g) { tiles.template store<b.value, g.value>(sum_of(b, g), sums.stride); });
  });
}

template <class Weights>
void multiply_many(Weights weights, int64_t blocks, int64_t k, const PackedRows& packed, const Results& results) {
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr int64_t kWide = foretoken::kTogether * kTile;
  alignas(64) static thread_local float rest[16 * kWide];  // sums of a last group that lacks rows
  const char* rows = static_cast<const char*>(packed.packed);
  const int64_t count = packed.count(), whole = count / 16, groups = groups_of(count), all_steps = blocks_of(k);
  Tiles<true> tiles(16);
  for (int64_t at = 0; at == 0 || at < all_steps; at += kSlice) {
    const int64_t steps = std::min(kSlice, all_steps - at), bytes = steps * kTileBytes;
    auto meet = [&](auto kBlocks, int64_t block) {
      const Slice slice = weights.slice(block, kBlocks, at, steps);
      const int64_t shares = (groups + 1) / 2, lines = (2 * 16 + shares - 1) / shares;
      auto some = [&](auto kGroups, int64_t group, const Results& sums) {
        Share next;
        if (Weights::kInMemory && steps > 0) {
          const int64_t done = group / 2 * lines * steps * 64;
          next = {slice.from + (kBlocks + done / bytes) * slice.bytes + done % bytes, lines};
        }
        const int64_t tile = tile_in_slices(packed.from / 16 + group, groups_of(packed.n), at, all_steps);
        multiply_slice<kBlocks.value, kGroups.value>(tiles, slice, rows + tile * kTileBytes, steps, at == 0,
                                                     sums.block(block), next);
      };
      int64_t group = 0;
      for (; group + 2 <= whole; group += 2) some(kTwo, group, Results{results.at(group * 16), results.stride});
      for (; group < whole; ++group) some(kOne, group, Results{results.at(group * 16), results.stride});
      if (group < groups) some(kOne, group, Results{rest, kWide});
    };
    int64_t block = 0;
    for (; block + 2 <= blocks; block += 2) meet(kTwo, block);
    if (block < blocks) meet(kOne, block);
  }
  for (int64_t row = whole * 16; row < count; ++row) {
    std::memcpy(results.at(row), rest + row % 16 * kWide, static_cast<std::size_t>(blocks * kTile) * 4);
  }
}

// -- weights --------------------------------------------------------------------------------------------------------
// With few rows, `begin` with up to kMost blocks; then for each step `prepare`, and kLate steps later `tile`. With many,
// `slice`: all blocks' tiles of some steps.

// Lines of 64 bytes as they lie in rows anywhere: with four blocks, memory would be read in too many places at once.
class InRows {
 public:
  static constexpr bool kRowsLeft = false, kInMemory = false;
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

  Slice slice(int64_t block, int64_t blocks, int64_t at, int64_t steps) {
    SliceRoom& room = slice_room();
    begin(block, blocks);
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t step = at; step < at + steps; ++step) {
        char* tile = room.tiles[i][step - at];
        const int64_t left = std::min<int64_t>(32, k_ - step * 32);
        if (left < 32) std::memset(tile, 0, kTileBytes);
        for (int j = 0; j < 16; ++j) std::memcpy(tile + j * 64, row(i, j) + step * 64, static_cast<std::size_t>(left) * 2);
        transpose(reinterpret_cast<float*>(tile));
      }
    }
    return room.slice();
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
  static constexpr bool kRowsLeft = true, kInMemory = true;
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

  Slice slice(int64_t block, int64_t, int64_t at, int64_t) const {
    return {from_ + block * bytes_ + at * kTileBytes, bytes_};
  }

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
  static constexpr bool kRowsLeft = true, kInMemory = false;
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
  void prepare(int i, int64_t step) { make(i, step, room_->tiles[i][step % 4]); }
  Lines tile(int i, int64_t step) const { return {room_->tiles[i][step % 4], 64}; }

  Slice slice(int64_t block, int64_t blocks, int64_t at, int64_t steps) {
    SliceRoom& room = slice_room();
    begin(block, blocks);
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t step = at; step < at + steps; ++step) make(i, step, room.tiles[i][step - at]);
    }
    return room.slice();
  }

 private:
  // Fetches ahead, too; past the end of a block, the block that is read after it.
  void make(int i, int64_t step, char* tile) {
    if constexpr (F != Format::int2) {  // any other format's codes are fetched where they are decoded
      const int64_t ahead = step * each_ + FORETOKEN_CODES_AHEAD;
      const std::uint8_t* next = at_[i].codes + ahead + (ahead < bytes_ ? 0 : others_);
      __asm__("" : "+r"(next));  // one address, from which all lines are reached
      for (int64_t line = 0; line < each_; line += 64) __builtin_prefetch(next + line);
    }
    pairs_.put(at_[i], step, k_ - step * 32, tile);
  }

  Codes codes_;
  int64_t k_;
  Room* room_;
  Pairs<F> pairs_;
  int64_t each_, bytes_;  // of a step's codes, and of a block's
  Codes at_[kMost] = {};
  int64_t others_ = 0;
};

template <class Weights>
void multiply(Weights weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  (rows.n > kFew ? multiply_many<Weights> : multiply_few<Weights>)(weights, blocks, k, rows, results);
}

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  InRows::Room room;
  multiply(InRows(weights, k, &room), blocks, k, rows, results);
}

void repack(const void* const* weights, int64_t k, void* block) {
  for (int64_t step = 0; step < blocks_of(k); ++step) {
    alignas(64) float pairs[16 * 16];
    for (int i = 0; i < 16; ++i) std::memcpy(pairs + i * 16, static_cast<const char*>(weights[i]) + step * 64, 64);
    transpose(pairs);
    std::memcpy(static_cast<char*>(block) + step * kTileBytes, pairs, kTileBytes);
  }
}

void linear_repacked(const void* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  multiply(InTiles(weights, k), blocks, k, rows, results);
}

template <Format F>
void multiply_decoded(const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  typename Decoded<F>::Room room;
  multiply(Decoded<F>(w, k, &room), blocks, k, rows, results);
}

void linear_values(const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  switch (w.format) {
    case Format::mxfp4: return multiply_decoded<Format::mxfp4>(w, blocks, k, rows, results);
    case Format::int8: return multiply_decoded<Format::int8>(w, blocks, k, rows, results);
    case Format::int4: return multiply_decoded<Format::int4>(w, blocks, k, rows, results);
    default: return multiply_decoded<Format::int2>(w, blocks, k, rows, results);
  }
}

constexpr int64_t kManyRows = 4;  // from which on a tile's products cost less than one row after the other (LOG.md)

constexpr int64_t kRowsTogether = 256;  // a slice of them is 1 MB

constexpr foretoken::Kernels tiles_table(const char* name) {
  return table_of(name, foretoken::kTogether, kRowsTogether, kManyRows, repack, pack_values, linear_repacked);
}

}  // namespace
