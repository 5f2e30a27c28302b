// Rows for bf16 weights, packed as floats: for levels that multiply those.
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

}  // namespace
