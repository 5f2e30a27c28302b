// AMX: products with many rows, in slices of inputs. Part of amx.inl.

namespace {

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
  alignas(64) float rest[16 * kWide];  // sums of a last group that lacks rows
  const char* rows = static_cast<const char*>(packed.packed);
  const int64_t count = packed.count(), whole = count / 16, groups = groups_of(count), all_steps = blocks_of(k);
  const int64_t shares = (groups + 1) / 2, lines = (2 * 16 + shares - 1) / shares;  // fetched of the next two blocks
  Tiles<true> tiles(16);
  for (int64_t at = 0; at == 0 || at < all_steps; at += kSlice) {
    const int64_t steps = std::min(kSlice, all_steps - at), bytes = steps * kTileBytes;
    auto meet = [&](auto kBlocks, int64_t block) {
      const Slice slice = weights.slice(block, kBlocks, at, steps);
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

}  // namespace
