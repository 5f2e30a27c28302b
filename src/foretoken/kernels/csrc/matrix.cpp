#include "matrix.h"

#include <cstring>

namespace foretoken {

using std::int64_t;

constexpr int64_t kRowsAhead = 16;  // fetched while results are put where they belong

// Of weights, in pieces: less is not worth handing out, and more gains nothing (LOG.md).
constexpr int64_t kLeastBytes = 64 << 10, kMostBytes = 2 << 20;
// Of so many rows, which are read anew for each piece: in blocks.
constexpr int64_t kLongRows = 256, kLeastBlocks = 16, kMostBlocks = 64;

// use(where it goes, results, how many) for 16 numbers or fewer of a row.
template <class Use>
void Output::each_line(Blocks blocks, const PackedRows& rows, const Results& results, const Use& use) const {
  const int64_t all = count(blocks);
  for (int64_t row = 0; row < rows.count(); ++row) {
    float* at = to + (rows.from + row) * stride + blocks.from * kTile;
    const char* later = reinterpret_cast<const char*>(at + kRowsAhead * stride);  // rows lie apart, which no processor foresees
    for (int64_t line = 0; line < all * 4; line += 64) __builtin_prefetch(later + line, 1);
    for (int64_t i = 0; i < all; i += kTile) use(at + i, results.line(row, i / kTile), std::min(kTile, all - i));
  }
}

void Output::put(Blocks blocks, const PackedRows& rows, const Results& from) const {
  const int64_t all = count(blocks);
  if (from.tiled) {
    each_line(blocks, rows, from, [&](float* at, const float* results, int64_t some) {
      if (some < kTile) {
        for (int64_t i = 0; i < some; ++i) at[i] = add ? at[i] + results[i] : results[i];
      } else if (add) {
        for (int64_t i = 0; i < kTile; ++i) at[i] += results[i];
      } else {
        std::memcpy(at, results, kTile * 4);
      }
    });
    return;
  }
  for (int64_t row = 0; row < rows.count(); ++row) {
    float* at = to + (rows.from + row) * stride + blocks.from * kTile;
    const float* results = from.at(row);
    if (add) {
      for (int64_t i = 0; i < all; ++i) at[i] += results[i];
    } else if (all == kTile) {
      std::memcpy(at, results, kTile * 4);  // a size that is known costs less
    } else {
      std::memcpy(at, results, static_cast<std::size_t>(all) * 4);
    }
  }
}

void Output::get(Blocks blocks, const PackedRows& rows, const Results& into) const {
  if (into.tiled) {
    each_line(blocks, rows, into, [](const float* at, float* results, int64_t some) {
      std::memcpy(results, at, static_cast<std::size_t>(some) * 4);
    });
    return;
  }
  for (int64_t row = 0; row < rows.count(); ++row) {
    const float* at = to + (rows.from + row) * stride + blocks.from * kTile;
    std::memcpy(into.at(row), at, static_cast<std::size_t>(count(blocks)) * 4);
  }
}

Inputs Arithmetic::rounding(const Matrix& matrix, int64_t n) const {
  if (matrix.rounding != Inputs::fastest) return matrix.rounding;
  return matrix.format == Format::mxfp4 && n >= kernels->mxfp4_rows ? Inputs::bf16 : Inputs::int8;
}

void Arithmetic::linear(const Matrix& matrix, Blocks blocks, const PackedRows& rows, const Results& results) const {
  const int64_t first = blocks.from, count = blocks.count();
  if (!is_float(matrix.format)) {
    kernels->linear_coded(rounding(matrix, rows.n), matrix.codes(first), count, matrix.inputs, rows, results);
  } else if (matrix.repacked) {
    const char* data = matrix.data + static_cast<std::size_t>(first) * repacked_bytes(matrix.inputs);
    kernels->linear_repacked(data, count, matrix.inputs, rows, results);
  } else {
    const void* weights[kTogether * kTile];
    for (int64_t i = 0; i < count; ++i) matrix.block((first + i) * kTile, weights + i * kTile);
    kernels->linear(matrix.format, weights, count, matrix.inputs, rows, results);
  }
  if (matrix.bias.empty()) return;
  const int64_t outputs = std::min(count * kTile, matrix.outputs - first * kTile);
  for (int64_t row = 0; row < rows.count(); ++row) {
    for (int64_t i = 0; i < outputs; ++i) {
      results.line(row, i / kTile)[i % kTile] += matrix.bias[static_cast<std::size_t>(first * kTile + i)];
    }
  }
}

Cut::Cut(int64_t blocks, int64_t threads, int64_t least, int64_t most, int64_t unit) : starts_{0} {
  int64_t at = 0, share = std::clamp<int64_t>(blocks * 3 / 4 / threads, 1, most);
  while (at < blocks) {
    const int64_t length = (share + unit - 1) / unit * unit;
    for (int64_t i = 0; i < threads && at < blocks; ++i) starts_.push_back(at = std::min(blocks, at + length));
    share = std::clamp((blocks - at) / (2 * threads), std::min(share, least), share);
  }
}

Cut Arithmetic::cut(int64_t blocks, int64_t bytes, int64_t n) const {
  const int64_t unit = std::min<int64_t>(kernels->together, 2);  // kernels for several want two
  if (kernels->rows.are(n) && n >= kLongRows) return Cut(blocks, pool->threads(), kLeastBlocks, kMostBlocks, unit);
  return Cut(blocks, pool->threads(), std::max(unit, kLeastBytes / bytes), std::max(unit, kMostBytes / bytes), unit);
}

void Arithmetic::multiply(std::initializer_list<Output> outputs, const char* packed, int64_t n,
                          std::vector<Buffer<float>>& room) const {
  int64_t all = 0;
  for (const Output& output : outputs) all += output.matrix->blocks();
  const Cut shares = cut(all, outputs.begin()->matrix->block_bytes(), n);
  pool->run(shares.pieces(), [&](int64_t piece, int thread) {
    int64_t from = shares.from(piece), to = shares.from(piece + 1);
    for (const Output& output : outputs) {
      const Matrix& matrix = *output.matrix;
      each_piece(matrix, 1, from, std::min(to, matrix.blocks()), packed, n, room[static_cast<std::size_t>(thread)].data(),
                 [&](Blocks blocks, const PackedRows& rows, const Results& results) {
                   linear(matrix, blocks, rows, results);
                   output.put(blocks, rows, results);
                 });
      from = std::max<int64_t>(0, from - matrix.blocks());
      to -= matrix.blocks();
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

void Arithmetic::pack_rows(const Matrix& m, const float* x, int64_t from, int64_t to, int64_t n, char* packed) const {
  if (m.repacked) {
    kernels->pack_for_repacked(x, m.inputs, from, to, n, m.inputs, packed);
  } else if (is_float(m.format)) {
    kernels->pack(m.format, x, m.inputs, from, to, n, m.inputs, packed);
  } else {
    kernels->pack_coded(rounding(m, n), m.format, x, m.inputs, from, to, n, m.inputs, packed);
  }
}

void Arithmetic::pack(const Matrix& m, const float* x, int64_t n, char* packed) const {
  each_to_pack(n, m.inputs, [&](int64_t from, int64_t to) { pack_rows(m, x, from, to, n, packed); });
}

}  // namespace foretoken
