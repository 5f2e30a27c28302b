// AMX: products with few rows, which wait for memory. Part of amx.inl.

namespace {

// Calls use(0), use(1), ... below kCount, each as a constant.
template <int kCount, class Use>
inline void each(Use use) {
  if constexpr (kCount > 0) use(std::integral_constant<int, 0>{});
  if constexpr (kCount > 1) use(std::integral_constant<int, 1>{});
  if constexpr (kCount > 2) use(std::integral_constant<int, 2>{});
  if constexpr (kCount > 3) use(std::integral_constant<int, 3>{});
}

constexpr int64_t kStoreEach = 2;  // steps: half a microsecond where memory is waited for

// The products of kBlocks blocks, with which `weights` has begun, and kGroups groups of rows from `group` on. `results`: the
// first block's. What the loop needs comes by value: gcc would read members behind a reference anew at each step.
template <int kBlocks, int kGroups, class T, class Weights>
void multiply_blocks(T& tiles, Weights weights, RowTiles rows, int64_t group, Results results) {
  each<kBlocks>([&](auto b) { each<kGroups>([&](auto g) { tiles.template zero<b.value, g.value>(); }); });
  for (int64_t at = 0; at < rows.steps + Weights::kLate; ++at) {
    if (at < rows.steps) each<kBlocks>([&](auto b) { weights.prepare(b.value, at); });
    const int64_t step = at - Weights::kLate;
    if (step < 0) continue;
    if (step % kStoreEach == kStoreEach - 1) tiles.keep_storing();
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
    multiply_blocks<kBlocks.value, kGroups.value>(tiles, weights, rows, group, results.block(block));
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

}  // namespace
