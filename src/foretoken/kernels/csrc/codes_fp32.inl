// mxfp4 with float32 inputs, to compare. Packed: for each 32 inputs, for each row, the inputs as they are.

namespace {

void pack_fp32(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, float* packed) {
  for (int64_t row = from; row < to; ++row) {
    for (int64_t block = 0; block < blocks_of(k); ++block) {
      float* out = packed + (block * n + row) * 32;
      const float* in = x + row * stride + block * 32;
      for (int64_t i = 0; i < 32; ++i) out[i] = block * 32 + i < k ? in[i] : 0.0f;
    }
  }
}

void linear_fp32(const Codes& w, int64_t k, const PackedRows& rows, const Results& results) {
  constexpr float kValues[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const V16 table = load(kValues);
  const Fetching<Format::mxfp4> fetching(rows.count());
  for (int64_t block = 0; block < blocks_of(k); ++block) {
    const std::uint8_t* at = w.codes + block * 256;
    fetching.behind(at);
    V16 values[32];
    for (int c = 0; c < 4; ++c) {
      const Ints lanes = load_ints(at + 64 * c);
      V16* v = values + 8 * c;
      v[2] = pick(table, lanes);
      v[6] = pick(table, right<4>(lanes));
      v[3] = pick(table, right<8>(lanes));
      v[7] = pick(table, right<12>(lanes));
      v[0] = pick(table, right<16>(lanes));
      v[4] = pick(table, right<20>(lanes));
      v[1] = pick(table, right<24>(lanes));
      v[5] = pick(table, right<28>(lanes));
    }
    const V16 power = as_floats(plus(as_ints(set1(1.0f)), exponents(w, block, 0)));
    by_rows<kValueRows>(rows.count(), [&](auto count, int64_t row) {
      constexpr int N = decltype(count)::value;
      const float* x = static_cast<const float*>(rows.packed) + (block * rows.n + rows.from + row) * 32;
      V16 sums[N];
      for (int r = 0; r < N; ++r) sums[r] = set1(0.0f);
#pragma GCC unroll 32
      for (int i = 0; i < 32; ++i) {
        for (int r = 0; r < N; ++r) sums[r] = fma(values[i], set1(x[r * 32 + i]), sums[r]);
      }
      for (int r = 0; r < N; ++r) {
        float* out = results.at(row + r);
        store(out, fma(sums[r], power, load(out)));
      }
    });
  }
}

}  // namespace
