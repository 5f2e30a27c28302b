// AMX: weights as tiles. Part of amx.inl.

namespace {

// With few rows, `begin` with up to kMost blocks; then for each step `prepare`, and kLate steps later `tile`. With many,
// `slice`: the tiles of some steps of one or two blocks. kInMemory: these lie in memory, from where they can be fetched; else
// they are made.

// Lines of 32 inputs of 16 rows, behind whose ends come zeros.
inline void copy_lines(const void* const* rows, int64_t step, int64_t k, char* lines) {
  const int64_t left = k - step * 32;
  if (left < 32) std::memset(lines, 0, kTileBytes);
  for (int j = 0; j < 16; ++j) {
    const char* from = static_cast<const char*>(rows[j]) + step * 64;
    if (left < 32) {
      std::memcpy(lines + j * 64, from, static_cast<std::size_t>(left) * 2);
    } else {
      std::memcpy(lines + j * 64, from, 64);  // a size that is known costs less
    }
  }
}

// The same as a tile on the right.
inline void put_rows(const void* const* rows, int64_t step, int64_t k, char* tile) {
  copy_lines(rows, step, k, tile);
  transpose(reinterpret_cast<float*>(tile));
}

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
    copy_lines(at_[i], step, k_, lines);
    return {lines, 64};
  }

  Slice slice(int64_t block, int64_t blocks, int64_t at, int64_t steps) const {
    SliceRoom& room = own_room<SliceRoom>();
    for (int64_t i = 0; i < blocks; ++i) {
      const void* const* rows = rows_ + (block + i) * kTile;
      for (int64_t step = at; step < at + steps; ++step) put_rows(rows, step, k_, room.tiles[i][step - at]);
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

// What codes mean, where F is mxfp4, int8, int4, or int2 for any other. With few rows each tile is made two steps before it is
// multiplied, so that neither waits for the other.
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
    SliceRoom& room = own_room<SliceRoom>();
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

}  // namespace
