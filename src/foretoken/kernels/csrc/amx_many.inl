// AMX: products with many rows, in slices of inputs. Part of amx.inl.

namespace {

// A slice of two blocks' weights, 32 KB, stays in the first cache while all rows meet it, whose slices come from the second.
// Between slices, sums wait where results go.

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

// A slice's share of kGroups tiles, to the first cache. at: step * kTileBytes.
template <int kGroups>
inline void fetch_part(const char* tiles, int64_t at) {
  static_assert(kSlice == 16);  // lines of a tile
  const char* from = tiles + at / kSlice * kGroups;
  for (int line = 0; line < kGroups; ++line) __builtin_prefetch(from + line * 64);
}

// Adds the products of a slice to the sums of kBlocks blocks and kGroups groups, or with the first slice begins them.
// `bytes`: from one group's rows to the next.
template <int kBlocks, int kGroups, class T>
void multiply_slice(T& tiles, Slice weights, const char* rows, int64_t bytes, int64_t steps, bool first, Results sums,
                    Share next) {
  auto sum_of = [&](auto b, auto g) { return sums.to + b.value * sums.block_stride + g.value * sums.group_stride; };
  each<kBlocks>([&](auto b) {
    each<kGroups>([&](auto g) {
      if (first) {
        tiles.template zero<b.value, g.value>();
      } else {
        tiles.template load<b.value, g.value>(sum_of(b, g), sums.stride);
      }
    });
  });
  const char* later = reinterpret_cast<const char*>(sums.to + kGroups * sums.group_stride);  // the next groups' sums
  const bool fetch = sums.tiled && !first;
  for (int64_t at = 0; at < steps * kTileBytes; at += kTileBytes) {
    each<kGroups>([&](auto g) { tiles.template pass_rows<g.value>(Lines{rows + g.value * bytes + at, 64}); });
    if (fetch) each<kBlocks>([&](auto b) { fetch_part<kGroups>(later + b.value * sums.block_stride * 4, at); });
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
  alignas(64) float rest[16 * kWide];  // sums of a last group that lacks rows, for which there is no other room
  const char* rows = static_cast<const char*>(packed.packed);
  const int64_t count = packed.count(), groups = groups_of(count), all_steps = blocks_of(k);
  const int64_t whole = results.tiled ? groups : count / 16;
  // fetched of the next two blocks with each step: a power of two, so that no share goes from one block into the other
  const int64_t shares = (groups + 1) / 2;
  int64_t lines = 1;
  while (lines < 16 && lines * shares < 2 * 16) lines *= 2;
  Tiles<true> tiles(16);
  for (int64_t at = 0; at == 0 || at < all_steps; at += kSlice) {
    const int64_t steps = std::min(kSlice, all_steps - at), bytes = steps * kTileBytes;
    auto meet = [&](auto kBlocks, int64_t block) {
      const Slice slice = weights.slice(block, kBlocks, at, steps);
      // fetched meanwhile: this slice of the next two blocks; behind the last ones the next slice of the first; behind all
      // slices the first one of the blocks that follow
      const int64_t on = kBlocks * slice.bytes, next_slice = bytes - block * slice.bytes;
      const int64_t later = block + kBlocks < blocks ? on : at + steps < all_steps ? next_slice : on - at * kTileBytes;
      int64_t fetched = 0;
      auto add = [&](auto kGroups, int64_t group) {
        Results sums = results.block(block);
        sums.to += group * sums.group_stride;
        if (group == whole) sums = Results{rest, kWide}.block(block);
        Share next;
        if (Weights::kInMemory && steps > 0 && fetched < 2 * bytes) {
          next = {slice.from + later + fetched / bytes * slice.bytes + fetched % bytes, lines};
        }
        fetched += lines * bytes / 16;
        const int64_t tile = tile_in_slices(packed.from / 16 + group, groups_of(packed.n), at, all_steps);
        multiply_slice<kBlocks.value, kGroups.value>(tiles, slice, rows + tile * kTileBytes, bytes, steps, at == 0, sums,
                                                     next);
      };
      int64_t group = 0;
      for (; group + 2 <= whole; group += 2) add(kTwo, group);
      for (; group < groups; ++group) add(kOne, group);
    };
    int64_t block = 0;
    for (; block + 2 <= blocks; block += 2) meet(kTwo, block);
    if (block < blocks) meet(kOne, block);
  }
  for (int64_t row = whole * 16; row < count; ++row) {
    std::memcpy(results.at(row), rest + row % 16 * kWide, static_cast<std::size_t>(blocks * kTile) * 4);
  }
}

}  // namespace
