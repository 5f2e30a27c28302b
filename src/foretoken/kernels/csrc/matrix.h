// Linear layers on a pool: rows packed once, weights read once, outputs computed in blocks of 16 by whoever is free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

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

struct Output {  // where a matrix' results go: to[row * stride + output], set or added; from `stride` on, nowhere
  const Matrix* matrix;
  float* to;
  std::int64_t stride;
  bool add;

  // Some rows of the block of outputs that begins with `first`: from a tile, and into one, whose other numbers stay.
  void put(std::int64_t first, const float* tile, std::int64_t n) const;
  void get(std::int64_t first, float* tile, std::int64_t n) const;
};

template <class T>
void at_least(std::vector<T>& v, std::int64_t n) {
  if (static_cast<std::int64_t>(v.size()) < n) v.resize(static_cast<std::size_t>(n));
}

// The first byte of a line, where packed rows begin; vectors that hold them have 64 bytes more than needed.
inline char* aligned(std::vector<char>& v) {
  return reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(v.data()) + 63) / 64 * 64);
}

// How blocks of outputs are shared out: first in long pieces, because memory runs ahead of a thread that reads on from where
// it was; then in pieces that become shorter, so that all threads end together.
class Cut {
 public:
  // Pieces begin with at most `most` blocks, and become no shorter than `least`.
  Cut(std::int64_t blocks, std::int64_t threads, std::int64_t least, std::int64_t most);

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
  // Row `row` of n, where it begins, as a matrix wants it; `packed` is what all of them are packed into.
  void pack_row(const Matrix& matrix, const float* x, std::int64_t row, std::int64_t n, char* packed) const;
  void pack(const Matrix& matrix, const float* x, std::int64_t n, char* packed) const;
  // What n rows are rounded to before they meet a low-bit matrix.
  Inputs rounding(const Matrix& matrix, std::int64_t n) const;
  // Whether rows that are packed for one matrix are packed for another, with which they are multiplied alike.
  bool packs_alike(const Matrix& one, const Matrix& other) const {
    return one.repacked == other.repacked || !kernels->pack_repacked;
  }
  // How many blocks of results there must be room for: n * 16 floats for each.
  std::int64_t together() const { return kernels->together; }
  // The results of some blocks with their biases: tile[(i * n + row) * 16 + j] of block first + i.
  void tiles(const Matrix& matrix, std::int64_t first, std::int64_t blocks, const char* packed, std::int64_t n,
             float* tile) const;
  // `bytes`: what a block takes.
  Cut cut(std::int64_t blocks, std::int64_t bytes) const;
  // All outputs of some matrices for which rows are packed alike. `room`: n * 16 * `together` floats a thread.
  void multiply(std::initializer_list<Output> outputs, const char* packed, std::int64_t n,
                std::vector<std::vector<float>>& room) const;
  // bf16 weights into the instruction set's own layout, in place: outputs a multiple of 16, inputs of 32.
  void repack(char* data, std::int64_t outputs, std::int64_t inputs) const;
};

}  // namespace foretoken
