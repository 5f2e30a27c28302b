// Linear layers on a pool: rows packed once, weights read once, outputs computed in blocks of 16 by whoever is free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "pool.h"

namespace foretoken {

struct Matrix {  // [outputs, inputs], as it lies in the checkpoint: row-major, or codes in tiles of 16 outputs
  const char* data = nullptr;
  std::int64_t outputs = 0, inputs = 0;
  std::vector<float> bias;  // empty, or one an output
  Format format = Format::fp32;
  bool repacked = false;  // `data` is in the instruction set's own layout
  // of low-bit weights
  Inputs rounding = Inputs::bf16;
  const char* scales = nullptr;
  std::int64_t group = 0;

  // The rows of weights of a block of 16 outputs; behind the last one, the last again.
  void block(std::int64_t first, const void** weights) const {
    for (std::int64_t i = 0; i < kTile; ++i) {
      const std::int64_t row = std::min(first + i, outputs - 1);
      weights[i] = data + static_cast<std::size_t>(row * inputs) * size_of(format);
    }
  }
  Codes codes(std::int64_t block) const {
    return codes_at({format, group, reinterpret_cast<const std::uint8_t*>(data), scales}, block, inputs);
  }
  std::int64_t blocks() const { return (outputs + kTile - 1) / kTile; }
  // What 16 outputs take.
  std::int64_t block_bytes() const {
    if (is_float(format)) return std::max<std::int64_t>(1, kTile * inputs * static_cast<std::int64_t>(size_of(format)));
    return blocks_of(inputs) * foretoken::block_bytes(format);
  }
  // Whether rows are rounded and multiplied alike with both.
  bool meets_like(const Matrix& other) const {
    return inputs == other.inputs && format == other.format && rounding == other.rounding;
  }
};

struct Blocks {  // of 16 outputs
  std::int64_t from, to;

  std::int64_t count() const { return to - from; }
};

struct Output {  // where a matrix' results go: to[row * stride + output], set or added; from `stride` on, nowhere
  const Matrix* matrix;
  float* to;
  std::int64_t stride;
  bool add;

  // The results of some blocks for some rows: put from there, or gotten into there, where numbers behind the last output
  // stay what they are.
  void put(Blocks blocks, const PackedRows& rows, const Results& from) const;
  void get(Blocks blocks, const PackedRows& rows, const Results& into) const;

 private:
  template <class Use>
  void each_line(Blocks blocks, const PackedRows& rows, const Results& results, const Use& use) const;
  // How many of these blocks' results go anywhere.
  std::int64_t count(Blocks blocks) const {
    return std::clamp<std::int64_t>(std::min(matrix->outputs, stride) - blocks.from * kTile, 0, blocks.count() * kTile);
  }
};

// How blocks of outputs are shared out: first in long pieces, because memory runs ahead of a thread that reads on from where
// it was; then in pieces that become shorter, so that all threads end together.
class Cut {
 public:
  // Pieces begin with about `most` blocks at most, and become no shorter than `least`. All but the last have a multiple of
  // `unit`.
  Cut(std::int64_t blocks, std::int64_t threads, std::int64_t least, std::int64_t most, std::int64_t unit);

  std::int64_t pieces() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t from(std::int64_t piece) const { return starts_[static_cast<std::size_t>(piece)]; }

 private:
  std::vector<std::int64_t> starts_;  // and where the last one ends
};

struct Arithmetic {  // which kernels, on which threads
  const Kernels* kernels;
  Pool* pool;

  // Bytes that n rows take when they are packed for a matrix.
  std::int64_t packed_bytes(const Matrix& matrix, std::int64_t n) const;
  // Rows [from, to) of n rows x as a matrix wants them; `packed` is what all of them are packed into.
  void pack_rows(const Matrix& matrix, const float* x, std::int64_t from, std::int64_t to, std::int64_t n, char* packed) const;
  // work(from, to) for rows that are best packed together, on all threads.
  template <class F>
  void each_to_pack(std::int64_t n, std::int64_t k, const F& work) const {
    const std::int64_t each = n < kTile * 4 * pool->threads() ? 1 : kTile;  // else some threads would have nothing
    pool->run_light((n + each - 1) / each, n * k,
                    [&](std::int64_t piece, int) { work(piece * each, std::min(n, piece * each + each)); });
  }
  void pack(const Matrix& matrix, const float* x, std::int64_t n, char* packed) const;
  // Whether n rows can be packed for a matrix step by step.
  bool packs_steps(const Matrix& matrix, std::int64_t n) const {
    if (!kernels->rows.are(n)) return false;
    return is_float(matrix.format) ? matrix.format == Format::bf16 : rounding(matrix, n) == Inputs::bf16;
  }
  // What n rows are rounded to before they meet a low-bit matrix.
  Inputs rounding(const Matrix& matrix, std::int64_t n) const;
  // Whether rows that are packed for one matrix are packed for another, with which they are multiplied alike.
  bool packs_alike(const Matrix& one, const Matrix& other) const {
    return one.repacked == other.repacked || !kernels->pack_repacked;
  }
  // work(blocks, rows, results) for pieces of blocks [from, to) with all n rows, such that results stay near, those of so many
  // matrices together. results: in `room`, which has `room_for(n)` floats. Of many rows, pieces begin with an even block if
  // `from` is even.
  template <class F>
  void each_piece(const Matrix& matrix, int matrices, std::int64_t from, std::int64_t to, const char* packed, std::int64_t n,
                  float* room, const F& work) const {
    const ManyRows& many = kernels->rows;
    const bool tiled = packs_steps(matrix, n);
    const std::int64_t rows = rows_at_once(n, tiled ? many.together : many.together / 2);
    const bool stay = rows * matrix.inputs * 2 <= many.bytes;
    const std::int64_t most = !tiled ? kernels->together : stay ? 2 : many.blocks / matrices;
    for (std::int64_t row = 0; row < n; row += rows) {
      const PackedRows some{packed, n, row, std::min(n, row + rows)};
      for (std::int64_t block = from; block < to; block += most) {
        const Blocks blocks{block, std::min(to, block + most)};
        work(blocks, some, tiled ? Results::tiles(room, some.count()) : Results{room, blocks.count() * kTile});
      }
    }
  }
  // What is enough for n rows is enough for fewer.
  std::int64_t room_for(std::int64_t n) const {
    const ManyRows& many = kernels->rows;
    if (!many.are(n)) return (n + 15) / 16 * 16 * kernels->together * kTile;
    return std::min((n + 31) / 32 * 32, many.together) * std::max(kernels->together, many.blocks) * kTile;
  }
  // The results of some blocks with their biases.
  void linear(const Matrix& matrix, Blocks blocks, const PackedRows& rows, const Results& results) const;
  // For n rows. `bytes`: what a block takes.
  Cut cut(std::int64_t blocks, std::int64_t bytes, std::int64_t n) const;
  // All outputs of some matrices for which rows are packed alike. `room`: `room_for(n)` floats a thread.
  void multiply(std::initializer_list<Output> outputs, const char* packed, std::int64_t n,
                std::vector<Buffer<float>>& room) const;
  // bf16 weights into the instruction set's own layout, in place: outputs a multiple of 16, inputs of 32.
  void repack(char* data, std::int64_t outputs, std::int64_t inputs) const;

 private:
  // Of many rows, about as many each time, a multiple of 32 and at most `most`.
  std::int64_t rows_at_once(std::int64_t n, std::int64_t most) const {
    if (!kernels->rows.are(n)) return n;
    const std::int64_t parts = (n + most - 1) / most;
    return (n + parts * 32 - 1) / (parts * 32) * 32;
  }
};

}  // namespace foretoken
