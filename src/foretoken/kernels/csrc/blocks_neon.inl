// bf16 with 128-bit registers of ARM's: 16 outputs at a time, one a lane of four registers. Products are fused
// multiply-adds of floats: the instructions for bf16 (BFDOT, BFMMLA) round otherwise than the format does.

namespace {

constexpr int64_t kAhead = 2 << 10;  // bytes of repacked weights that are fetched ahead
constexpr int kMostRows = 4;

constexpr int kParts = 4;  // registers of 16 outputs

// Adds the products of 16 outputs' even or odd inputs with number kLane of each row's four.
template <int kLane, bool kOdd, int N>
[[gnu::always_inline]] inline void add_products(const std::uint32_t* column, const float32x4_t (&x)[N],
                                                float32x4_t (&sums)[N][kParts]) {
  for (int part = 0; part < kParts; ++part) {
    const uint32x4_t pairs = read<uint32x4_t>(column + part * 4);
    const uint32x4_t bits = kOdd ? vandq_u32(pairs, vdupq_n_u32(0xffff0000u)) : vshlq_n_u32(pairs, 16);
    const float32x4_t w = vreinterpretq_f32_u32(bits);
    for (int n = 0; n < N; ++n) sums[n][part] = vfmaq_laneq_f32(sums[n][part], w, x[n], kLane);
  }
}

// Of four pairs from `columns` on.
template <bool kOdd, int N>
[[gnu::always_inline]] inline void meet_pairs(const std::uint32_t* columns, const float* x, float32x4_t (&sums)[N][kParts]) {
  float32x4_t four[N];
  for (int n = 0; n < N; ++n) four[n] = read<float32x4_t>(x + n * 32 + (kOdd ? 16 : 0));
  add_products<0, kOdd>(columns, four, sums);
  add_products<1, kOdd>(columns + 16, four, sums);
  add_products<2, kOdd>(columns + 32, four, sums);
  add_products<3, kOdd>(columns + 48, four, sums);
}

// 32 inputs of 16 outputs, as columns of pairs, meet N rows. With one or two, sums of even and of odd inputs take turns, so
// that none waits for itself; with more, there are registers for one kind at a time.
template <int N>
inline void rows_block(const std::uint32_t* columns, const float* x, const Results& results) {
  float32x4_t even[N][kParts], odd[N][kParts];
  for (int n = 0; n < N; ++n) {
    for (int part = 0; part < kParts; ++part) even[n][part] = odd[n][part] = vdupq_n_f32(0.0f);
  }
  if constexpr (N <= 2) {
    for (int t = 0; t < 16; t += 4) {
      meet_pairs<false>(columns + t * 16, x + t, even);
      meet_pairs<true>(columns + t * 16, x + t, odd);
    }
  } else {
    for (int t = 0; t < 16; t += 4) meet_pairs<false>(columns + t * 16, x + t, even);
    for (int t = 0; t < 16; t += 4) meet_pairs<true>(columns + t * 16, x + t, odd);
  }
  for (int n = 0; n < N; ++n) {
    for (int part = 0; part < kParts; ++part) {
      float* out = results.at(n) + part * 4;
      write(out, vaddq_f32(read<float32x4_t>(out), vaddq_f32(even[n][part], odd[n][part])));
    }
  }
}

// Four rows of four pairs become four columns of pairs.
inline void transpose(uint32x4_t (&r)[4]) {
  const uint32x4_t a = vtrn1q_u32(r[0], r[1]), b = vtrn2q_u32(r[0], r[1]);
  const uint32x4_t c = vtrn1q_u32(r[2], r[3]), d = vtrn2q_u32(r[2], r[3]);
  auto lower = [](uint32x4_t x, uint32x4_t y) {
    return vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)));
  };
  auto upper = [](uint32x4_t x, uint32x4_t y) {
    return vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)));
  };
  r[0] = lower(a, c);
  r[1] = lower(b, d);
  r[2] = upper(a, c);
  r[3] = upper(b, d);
}

// 16 pairs of 16 rows as columns. rest: inputs that are left.
inline void load_columns(const void* const* weights, int64_t line, int64_t rest, std::uint32_t* columns) {
  for (int part = 0; part < 4; ++part) {
    const std::uint16_t* rows[4];
    std::uint16_t last[4][32] = {};
    for (int i = 0; i < 4; ++i) {
      rows[i] = static_cast<const std::uint16_t*>(weights[part * 4 + i]) + line * 32;
      if (rest >= 32) continue;
      std::memcpy(last[i], rows[i], static_cast<std::size_t>(rest) * 2);
      rows[i] = last[i];
    }
    for (int t = 0; t < 16; t += 4) {
      uint32x4_t four[4];
      for (int i = 0; i < 4; ++i) four[i] = vreinterpretq_u32_u16(read<uint16x8_t>(rows[i] + t * 2));
      transpose(four);
      for (int i = 0; i < 4; ++i) write(columns + (t + i) * 16 + part * 4, four[i]);
    }
  }
}

// columns(block, line): those of 32 inputs of a block of outputs.
template <class Columns>
void multiply_columns(const Columns& columns, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const Groups groups(rows.count(), kMostRows);
  clear(blocks, rows.count(), results);
  by_size<kMostRows>(groups, [&](auto size) {
    for (int64_t block = 0; block < blocks; ++block) {
      const Results out = results.block(block);
      for (int64_t line = 0; line * 32 < k; ++line) {
        const std::uint32_t* its = columns(block, line);
        const float* x = static_cast<const float*>(rows.packed) + (line * rows.n + rows.from) * 32;
        groups.each<decltype(size)::value>([&](auto count, int64_t row) {
          rows_block<decltype(count)::value>(its, x + row * 32, {out.at(row), out.stride});
        });
      }
    }
  });
}

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  alignas(64) std::uint32_t room[256];
  auto columns = [&](int64_t block, int64_t line) {
    load_columns(weights + block * kTile, line, k - line * 32, room);
    return room;
  };
  multiply_columns(columns, blocks, k, rows, results);
}

void repack_bf16(const void* const* weights, int64_t k, void* out) {
  auto* columns = static_cast<std::uint32_t*>(out);
  for (int64_t line = 0; line * 32 < k; ++line, columns += 256) load_columns(weights, line, k - line * 32, columns);
}

void linear_repacked(const void* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  const auto* from = static_cast<const std::uint32_t*>(weights);
  auto columns = [&](int64_t block, int64_t line) {
    const std::uint32_t* its = from + (block * blocks_of(k) + line) * 256;
    foretoken::will_use<3>(reinterpret_cast<const char*>(its) + kAhead, 1024);
    return its;
  };
  multiply_columns(columns, blocks, k, rows, results);
}

}  // namespace
