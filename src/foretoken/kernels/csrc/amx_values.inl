// AMX: the values that attention weighs. Part of amx.inl.

namespace {

// Weights are rows on the left, values tiles on the right, of which 16 lines hold pairs of places.

constexpr int64_t kPlaces = 32;     // of a tile
constexpr int64_t kAtOnce = 8;      // tiles of places
constexpr int64_t kWidest = foretoken::kWidestKey;  // numbers of a value

struct alignas(64) ValuesRoom {
  char tiles[kAtOnce * kWidest / 16][kTileBytes];
};

// The tiles of each 16 numbers of some places' values lie behind each other.
void put_values(const void* const* values, int64_t places, int64_t width, char* tiles) {
  const int64_t bytes = places / kPlaces * kTileBytes;
  for (int64_t at = 0; at < places; at += 2) {
    auto number = [&](int64_t place, int64_t i) { return static_cast<const std::uint16_t*>(values[place]) + i; };
    char* line = tiles + at / kPlaces * kTileBytes + at % kPlaces * 32;
    for (int64_t i = 0; i < width; i += 16, line += bytes) pair_up(number(at, i), number(at + 1, i), line);
  }
}

// `sums`: of 16 queries, kBlocks * 16 numbers of each. lines: of tile after tile of places. bytes: of a block of values.
template <int kBlocks>
void weigh_tiles(Tiles<true>& tiles, const char* lines, int64_t count, const char* values, int64_t bytes, Results sums) {
  each<kBlocks>([&](auto b) { tiles.template load<b.value, 0>(sums.block(b.value).to, sums.stride); });
  for (int64_t i = 0; i < count; ++i) {
    tiles.template load_rows<0>(Lines{lines + i * kTileBytes, 64});
    each<kBlocks>([&](auto b) {
      tiles.template load_weights<b.value>(Lines{values + b.value * bytes + i * kTileBytes, 64});
      tiles.template multiply<b.value, 0>();
    });
  }
  each<kBlocks>([&](auto b) { tiles.template store<b.value, 0>(sums.block(b.value).to, sums.stride); });
}

// Groups of 16 queries, and up to kAtOnce tiles of places.
void weigh_groups(const float* weights, int64_t stride, int64_t groups, const void* const* values, int64_t count,
                  int64_t width, float* out) {
  char* room = own_room<ValuesRoom>().tiles[0];
  const int64_t bytes = count * kTileBytes;  // of 16 numbers of all values
  put_values(values, count * kPlaces, width, room);
  Tiles<true> tiles(16);
  for (int64_t group = 0; group < groups; ++group, weights += 16 * stride, out += 16 * width) {
    alignas(64) std::uint16_t lines[kAtOnce][16][kPlaces];
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t q = 0; q < 16; ++q) narrow(weights + q * stride + i * kPlaces, lines[i][q]);
    }
    const char* from = reinterpret_cast<const char*>(lines);
    int64_t at = 0;
    for (; at + 64 <= width; at += 64) {
      weigh_tiles<4>(tiles, from, count, room + at / 16 * bytes, bytes, {out + at, width});
    }
    for (; at < width; at += 16) weigh_tiles<1>(tiles, from, count, room + at / 16 * bytes, bytes, {out + at, width});
  }
}

void weigh_by_tiles(Format format, const float* weights, int64_t stride, int64_t queries, const void* const* values,
                    int64_t from, int64_t to, int64_t width, float* out) {
  const bool whole = from % kPlaces == 0 && to % kPlaces == 0;
  const int64_t groups = format == Format::bf16 && whole && width % 16 == 0 && width <= kWidest ? queries / 16 : 0;
  for (int64_t at = from; groups > 0 && at < to; at += kAtOnce * kPlaces) {
    weigh_groups(weights + at, stride, groups, values + at, std::min(kAtOnce, (to - at) / kPlaces), width, out);
  }
  const int64_t done = groups * 16;
  weigh(format, weights + done * stride, stride, queries - done, values, from, to, width, out + done * width);
}

}  // namespace
