// AMX: attention of many queries over places that all of them see. Part of amx.inl.

namespace {

// Keys become tiles, and so do values, once for all queries. Then 32 queries at a time: what is made of them, from scores to
// weights, goes no farther than the second cache.

using foretoken::kMostPlaces;
using foretoken::kScoresApart;
static_assert(kMostPlaces == kAtOnce * kPlaces);
constexpr int kGroupsAtOnce = 2;  // groups of 16 queries

struct alignas(64) AttentionRoom {
  char keys[kMostPlaces / 16 * kWidest / 32][kTileBytes];
  char values[kMostPlaces / kPlaces * kWidest / 16][kTileBytes];
  float scores[kGroupsAtOnce * 16][kScoresApart];
  std::uint16_t weights[kGroupsAtOnce][kAtOnce][16][kPlaces];
  float outs[kGroupsAtOnce * 16 * kWidest];  // where queries are lacking
};

// The tiles of each 16 keys lie behind each other.
void put_keys(const void* const* keys, int64_t places, int64_t width, char* tile) {
  for (int64_t at = 0; at < places; at += 16) {
    for (int64_t step = 0; step < width / 32; ++step, tile += kTileBytes) put_rows(keys + at, step, width, tile);
  }
}

// Products of some groups of rows with an even number of blocks of 16 outputs, all of whose tiles are there.
template <int kGroups>
void multiply_groups(Tiles<true>& tiles, const char* rows, const char* weights, int64_t blocks, int64_t steps, Results to) {
  const int64_t bytes = steps * kTileBytes;
  for (int64_t block = 0; block < blocks; block += 2) {
    multiply_slice<2, kGroups>(tiles, {weights + block * bytes, bytes}, rows, bytes, steps, true, to.block(block), {});
  }
}

void fetch_places(const Places& places, int64_t from, int64_t to) {
  for (int64_t i = from; i < std::min(to, places.count); ++i) {
    foretoken::will_use<2>(places.key(i), places.bytes);
    foretoken::will_use<2>(places.value(i), places.bytes);
  }
}

void attend(const Places& seen, const Places& next, const Queries& queries) {
  AttentionRoom& room = own_room<AttentionRoom>();
  const int64_t width = queries.width, steps = width / 32, blocks = width / 16;
  const void *keys[kMostPlaces], *values[kMostPlaces];
  for (int64_t i = 0; i < seen.count; ++i) {
    keys[i] = seen.key(i);
    values[i] = seen.value(i);
  }
  put_keys(keys, seen.count, width, room.keys[0]);
  put_values(values, seen.count, width, room.values[0]);
  Tiles<true> tiles(16);
  auto some = [&](auto kGroups, int64_t from) {  // queries
    constexpr int64_t kAll = kGroups.value * 16;
    const int64_t count = std::min(kAll, queries.count - from);
    const char* rows = static_cast<const char*>(queries.packed) + from / 16 * steps * kTileBytes;
    multiply_groups<kGroups.value>(tiles, rows, room.keys[0], seen.count / 16, steps, {room.scores[0], kScoresApart});
    for (int64_t first = 0; first < count; first += 16) {  // queries
      std::uint16_t* weights = room.weights[0][0][0] + first * seen.count;
      const int64_t some = std::min<int64_t>(16, count - first);
      soften_whole({room.scores[first], kScoresApart, some, seen.count, queries.scale}, queries.found.tops + from + first,
                   queries.found.sums + from + first, [&](int64_t q, int64_t i, V16 a, V16 b) {
                     round_line(a, b, weights + (i / kPlaces * 16 + q) * kPlaces);
                   });
    }
    float* out = queries.found.outs + from * width;
    const char* lines = reinterpret_cast<const char*>(room.weights);
    multiply_groups<kGroups.value>(tiles, lines, room.values[0], blocks, seen.count / kPlaces,
                                   {count == kAll ? out : room.outs, width});
    if (count < kAll) std::memcpy(out, room.outs, static_cast<std::size_t>(count * width) * 4);
  };
  const int64_t groups = groups_of(queries.count), share = (next.count + groups - 1) / groups;
  for (int64_t group = 0; group < groups; group += kGroupsAtOnce) {
    fetch_places(next, group * share, (group + kGroupsAtOnce) * share);
    if (group + kGroupsAtOnce <= groups) {
      some(std::integral_constant<int, kGroupsAtOnce>{}, group * 16);
    } else {
      some(std::integral_constant<int, 1>{}, group * 16);
    }
  }
}

}  // namespace
