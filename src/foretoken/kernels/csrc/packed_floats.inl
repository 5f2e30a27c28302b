// Rows for bf16 weights, packed as floats: for instruction sets that multiply those; and their products with the
// values of low-bit weights.
//
// For each 32 inputs, for each row, the 16 even numbers rounded to bf16 as floats, then the 16 odd ones.

namespace {

std::size_t bytes_bf16(int64_t n, int64_t k) { return static_cast<std::size_t>(n * padded(k, 32)) * 4; }

void pack_bf16(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  float* out = static_cast<float*>(packed);
  for (int64_t block = 0; block * 32 < k; ++block) {
    for (int64_t row = from; row < to; ++row) {
      float* to_row = out + (block * n + row) * 32;
      for (int64_t i = 0; i < 32; ++i) {
        const int64_t at = block * 32 + i;
        to_row[i / 2 + (i & 1) * 16] = at < k ? from_bf16(to_bf16(x[row * stride + at])) : 0.0f;
      }
    }
  }
}

std::size_t bytes_values(int64_t n, int64_t k) { return bytes_bf16(n, k); }

void pack_values(const float* x, int64_t stride, int64_t from, int64_t to, int64_t n, int64_t k, void* packed) {
  pack_bf16(x, stride, from, to, n, k, packed);
}

void values_block(const Codes& w, int64_t k, const PackedRows& rows, const Results& results) {
  for (int64_t block = 0; block < blocks_of(k); ++block) {
    V16 values[32];
    block_values(w, block, k - block * 32, values);
    const float* x = static_cast<const float*>(rows.packed) + (block * rows.n + rows.from) * 32;
    by_rows<kValueRows>(rows.count(), [&](auto count, int64_t row) {
      constexpr int N = decltype(count)::value;
      V16 even[N], odd[N];
      for (int r = 0; r < N; ++r) even[r] = odd[r] = set1(0.0f);
      for (int i = 0; i < 16; ++i) {
        for (int r = 0; r < N; ++r) {
          even[r] = fma(values[2 * i], set1(x[(row + r) * 32 + i]), even[r]);
          odd[r] = fma(values[2 * i + 1], set1(x[(row + r) * 32 + 16 + i]), odd[r]);
        }
      }
      for (int r = 0; r < N; ++r) {
        float* out = results.at(row + r);
        store(out, add(load(out), add(even[r], odd[r])));
      }
    });
  }
}

void linear_values(const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  clear(blocks, rows.count(), results);
  for (int64_t block = 0; block < blocks; ++block) values_block(codes_at(w, block, k), k, rows, results.block(block));
}

}  // namespace
