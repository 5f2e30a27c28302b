#include "matrix.h"

#include <cstring>

namespace foretoken {

using std::int64_t;

// Of weights, in pieces: less is not worth handing out, and more gains nothing (LOG.md).
constexpr int64_t kLeastBytes = 64 << 10, kMostBytes = 2 << 20;

void Output::put(int64_t first, const float* tile, int64_t n) const {
  const int64_t count = std::min({kTile, matrix->outputs - first, stride - first});
  for (int64_t row = 0; row < n && count > 0; ++row) {
    float* at = to + row * stride + first;
    const float* from = tile + row * kTile;
    if (add) {
      for (int64_t i = 0; i < count; ++i) at[i] += from[i];
    } else if (count == kTile) {
      std::memcpy(at, from, kTile * 4);  // a size that is known costs less
    } else {
      std::memcpy(at, from, static_cast<std::size_t>(count) * 4);
    }
  }
}

void Output::get(int64_t first, float* tile, int64_t n) const {
  const int64_t count = std::min({kTile, matrix->outputs - first, stride - first});
  for (int64_t row = 0; row < n; ++row) {
    std::memcpy(tile + row * kTile, to + row * stride + first, static_cast<std::size_t>(count) * 4);
  }
}

Inputs Arithmetic::rounding(const Matrix& matrix, int64_t n) const {
  if (matrix.rounding != Inputs::fastest) return matrix.rounding;
  return matrix.format == Format::mxfp4 && n >= kernels->many_rows ? Inputs::bf16 : Inputs::int8;
}

void Arithmetic::tiles(const Matrix& matrix, int64_t first, int64_t blocks, const char* packed, int64_t n,
                       float* tile) const {
  if (!is_float(matrix.format)) {
    kernels->linear_coded(rounding(matrix, n), matrix.codes(first), blocks, matrix.inputs, packed, n, tile);
  } else if (matrix.repacked) {
    const char* data = matrix.data + static_cast<std::size_t>(first) * repacked_bytes(matrix.inputs);
    kernels->linear_repacked(data, blocks, matrix.inputs, packed, n, tile);
  } else {
    const void* weights[kTogether * kTile];
    for (int64_t i = 0; i < blocks; ++i) matrix.block((first + i) * kTile, weights + i * kTile);
    kernels->linear(matrix.format, weights, blocks, matrix.inputs, packed, n, tile);
  }
  if (matrix.bias.empty()) return;
  for (int64_t output = first * kTile; output < std::min((first + blocks) * kTile, matrix.outputs); ++output) {
    float* to = tile + (output / kTile - first) * n * kTile + output % kTile;
    for (int64_t row = 0; row < n; ++row) to[row * kTile] += matrix.bias[static_cast<std::size_t>(output)];
  }
}

Cut::Cut(int64_t blocks, int64_t threads, int64_t least, int64_t most) : starts_{0} {
  int64_t at = 0, share = std::clamp<int64_t>(blocks * 3 / 4 / threads, 1, most);
  while (at < blocks) {
    for (int64_t i = 0; i < threads && at < blocks; ++i) starts_.push_back(at = std::min(blocks, at + share));
    share = std::clamp((blocks - at) / (2 * threads), std::min(share, least), share);
  }
}

Cut Arithmetic::cut(int64_t blocks, int64_t bytes) const {
  const int64_t few = std::min<int64_t>(together(), 2);  // kernels for several want two
  return Cut(blocks, pool->threads(), std::max(few, kLeastBytes / bytes), std::max(few, kMostBytes / bytes));
}

void Arithmetic::multiply(std::initializer_list<Output> outputs, const char* packed, int64_t n,
                          std::vector<std::vector<float>>& room) const {
  int64_t all = 0;
  for (const Output& output : outputs) all += output.matrix->blocks();
  const Cut shares = cut(all, outputs.begin()->matrix->block_bytes());
  pool->run(shares.pieces(), [&](int64_t piece, int thread) {
    float* results = room[static_cast<std::size_t>(thread)].data();
    int64_t blocks = 0;
    for (int64_t block = shares.from(piece); block < shares.from(piece + 1); block += blocks) {
      int64_t at = block;
      const Output* output = outputs.begin();
      while (at >= output->matrix->blocks()) at -= (output++)->matrix->blocks();
      blocks = std::min({together(), shares.from(piece + 1) - block, output->matrix->blocks() - at});
      tiles(*output->matrix, at, blocks, packed, n, results);
      for (int64_t i = 0; i < blocks; ++i) output->put((at + i) * kTile, results + i * n * kTile, n);
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
                                                 : kernels->coded_bytes(rounding(m, n), n, m.inputs));
}

void Arithmetic::pack_row(const Matrix& m, const float* x, int64_t row, int64_t n, char* packed) const {
  x -= row * m.inputs;  // kernels count from the first row
  if (m.repacked && kernels->pack_repacked) {
    kernels->pack_repacked(x, m.inputs, row, row + 1, n, m.inputs, packed);
  } else if (is_float(m.format)) {
    kernels->pack(m.format, x, m.inputs, row, row + 1, n, m.inputs, packed);
  } else {
    kernels->pack_coded(rounding(m, n), m.format, x, m.inputs, row, row + 1, n, m.inputs, packed);
  }
}

void Arithmetic::pack(const Matrix& m, const float* x, int64_t n, char* packed) const {
  pool->run_light(n, n * m.inputs, [&](int64_t row, int) { pack_row(m, x + row * m.inputs, row, n, packed); });
}

}  // namespace foretoken
