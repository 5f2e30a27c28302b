#include "matrix.h"

#include <cstring>

namespace foretoken {

using std::int64_t;

constexpr int64_t kPieceBytes = 512 << 10;  // of weights: some tens of microseconds of reading
constexpr int64_t kSmallBytes = 64 << 10;   // less is not worth handing out

void Arithmetic::tile(const Matrix& matrix, int64_t block, const char* packed, int64_t n, float* tile) const {
  const int64_t first = block * kTile, count = std::min(kTile, matrix.outputs - first);
  if (!is_float(matrix.format)) {
    kernels->linear_coded(matrix.rounding, matrix.codes(block), matrix.inputs, packed, n, tile);
  } else if (matrix.repacked) {
    const char* data = matrix.data + static_cast<std::size_t>(block) * repacked_bytes(matrix.inputs);
    kernels->linear_repacked(data, matrix.inputs, packed, n, tile);
  } else {
    const void* weights[kTile];
    matrix.block(first, weights);
    kernels->linear(matrix.format, weights, matrix.inputs, packed, n, tile);
  }
  if (matrix.bias.empty()) return;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < count; ++i) tile[row * kTile + i] += matrix.bias[static_cast<std::size_t>(first + i)];
  }
}

Cut Arithmetic::cut(int64_t blocks, int64_t bytes) const {
  const int64_t fair = std::max<int64_t>(1, blocks / (4 * pool->threads()));
  const int64_t size = std::clamp<int64_t>(kPieceBytes / bytes, 1, fair);
  const int64_t small = std::clamp<int64_t>(kSmallBytes / bytes, 1, size);
  return {blocks, blocks * 3 / 4 / size, size, std::max(small, size / 4)};
}

void Arithmetic::multiply(std::initializer_list<Output> outputs, const char* packed, int64_t n,
                          std::vector<std::vector<float>>& tiles) const {
  int64_t blocks = 0;
  for (const Output& output : outputs) blocks += output.matrix->blocks();
  const Cut shares = cut(blocks, outputs.begin()->matrix->block_bytes());
  pool->run(shares.pieces(), [&](int64_t piece, int thread) {
    float* results = tiles[static_cast<std::size_t>(thread)].data();
    for (int64_t block = shares.from(piece); block < shares.from(piece + 1); ++block) {
      int64_t at = block;
      const Output* output = outputs.begin();
      while (at >= output->matrix->blocks()) at -= (output++)->matrix->blocks();
      tile(*output->matrix, at, packed, n, results);
      const int64_t first = at * kTile;
      const int64_t count = std::min({kTile, output->matrix->outputs - first, output->stride - first});
      for (int64_t row = 0; row < n && count > 0; ++row) {
        float* to = output->to + row * output->stride + first;
        const float* from = results + row * kTile;
        if (output->add) {
          for (int64_t i = 0; i < count; ++i) to[i] += from[i];
        } else {
          std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
        }
      }
    }
  });
}

void Arithmetic::repack(char* data, int64_t outputs, int64_t inputs) const {
  // the 16 rows of a block and the block in its own layout are the same bytes in another order
  const std::size_t bytes = repacked_bytes(inputs);
  pool->run(outputs / kTile, [&](int64_t block, int) {
    char* at = data + static_cast<std::size_t>(block) * bytes;
    const std::vector<char> rows(at, at + bytes);
    const void* weights[kTile];
    for (int64_t i = 0; i < kTile; ++i) weights[i] = rows.data() + i * inputs * 2;
    kernels->repack(weights, inputs, at);
  });
}

int64_t Arithmetic::packed_bytes(const Matrix& m, int64_t n) const {
  return static_cast<int64_t>(is_float(m.format) ? kernels->packed_bytes(m.format, n, m.inputs)
                                                 : kernels->coded_bytes(m.rounding, n, m.inputs));
}

void Arithmetic::pack_row(const Matrix& m, const float* x, int64_t row, int64_t n, char* packed) const {
  x -= row * m.inputs;  // kernels count from the first row
  if (is_float(m.format)) {
    kernels->pack(m.format, x, m.inputs, row, row + 1, n, m.inputs, packed);
  } else {
    kernels->pack_coded(m.rounding, m.format, x, m.inputs, row, row + 1, n, m.inputs, packed);
  }
}

void Arithmetic::pack(const Matrix& m, const float* x, int64_t n, char* packed) const {
  pool->run_light(n, n * m.inputs, [&](int64_t row, int) { pack_row(m, x + row * m.inputs, row, n, packed); });
}

}  // namespace foretoken
