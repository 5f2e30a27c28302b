// Low-bit weights as tiles of bf16: 16 lines, of a pair of inputs of each of 16 outputs. In plain vectors, for every format.

namespace {

[[gnu::noinline]] void pairs_by_values(const Codes& w, int64_t step, int64_t left, char* tile) {
  V16 values[32];
  block_values(w, step, left, values);
  for (int t = 0; t < 16; ++t) {
    const Ints both = plus(right<16>(as_ints(values[2 * t])), as_ints(values[2 * t + 1]));
    std::memcpy(tile + t * 64, &both, sizeof both);
  }
}

}  // namespace
