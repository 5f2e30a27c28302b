// bf16 with 512-bit registers, where they multiply floats.
namespace {

struct Floats {  // a pair's two inputs are widened, and multiplied one after the other
  using Number = float;
  static constexpr int64_t kNumbers = 32;

  static __m512i arranged(__m512i line) { return line; }
  static constexpr int nth(int i) { return i; }

  static void multiply(int t, __m512i column, const float* x, __m512* even, __m512* odd) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 e = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, column, 16));
    const __m512 o = _mm512_castsi512_ps(_mm512_and_si512(column, upper));
    *even = _mm512_fmadd_ps(e, _mm512_set1_ps(x[t]), *even);
    *odd = _mm512_fmadd_ps(o, _mm512_set1_ps(x[16 + t]), *odd);
  }
};

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  linear_blocks<Floats>(weights, blocks, k, rows, results);
}

}  // namespace
