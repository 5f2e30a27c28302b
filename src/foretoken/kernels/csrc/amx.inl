// bf16 with AMX tiles, for real and emulated ones. A tile product adds 32 inputs of 16 outputs for up to 16 rows, with even
// and odd inputs summed apart (Intel's documented order of tdpbf16ps), which is the format's own order.
//
// Two blocks of outputs meet two groups of rows at a time, or four blocks one group: each tile of rows that is fetched is
// multiplied several times, and memory is read in several streams.
//
// Who includes this file has defined `Tiles<kRowsLeft>`: sums of those blocks and groups, two tiles for weights, which the
// blocks take in turn, and a tile for the rows of each group. Rows are the right operand of a product, or with kRowsLeft
// the left one. Also defined are `line_of`, which rounds the `left` inputs that are there to bf16 and leaves the rest of the
// line, which is zero; `narrow`, which makes bf16 of 32 numbers that are such, and `round_line`, of others; `transpose`, of 16
// by 16 floats in place; `pair_up`, which makes pairs of 16 numbers of two rows; and `Pairs`, which puts a step's codes into
// a tile on the right.

#include <algorithm>
#include <type_traits>

#include "amx_rows.inl"
#include "amx_few.inl"
#include "amx_many.inl"
#include "amx_weights.inl"
#include "amx_values.inl"
#include "amx_attention.inl"

namespace {

template <class Weights>
void multiply(Weights weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  (in_slices(rows.n, k) ? multiply_many<Weights> : multiply_few<Weights>)(weights, blocks, k, rows, results);
}

void linear_bf16(const void* const* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  InRows::Room room;
  multiply(InRows(weights, k, &room), blocks, k, rows, results);
}

void repack(const void* const* weights, int64_t k, void* block) {
  for (int64_t step = 0; step < blocks_of(k); ++step) {
    put_rows(weights, step, k, static_cast<char*>(block) + step * kTileBytes);
  }
}

void linear_repacked(const void* weights, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  multiply(InTiles(weights, k), blocks, k, rows, results);
}

template <Format F>
void multiply_decoded(const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  typename Decoded<F>::Room room;
  multiply(Decoded<F>(w, k, &room), blocks, k, rows, results);
}

void linear_values(const Codes& w, int64_t blocks, int64_t k, const PackedRows& rows, const Results& results) {
  switch (w.format) {
    case Format::mxfp4: return multiply_decoded<Format::mxfp4>(w, blocks, k, rows, results);
    case Format::int8: return multiply_decoded<Format::int8>(w, blocks, k, rows, results);
    case Format::int4: return multiply_decoded<Format::int4>(w, blocks, k, rows, results);
    default: return multiply_decoded<Format::int2>(w, blocks, k, rows, results);
  }
}

constexpr int64_t kMxfp4Rows = 4;  // from which on a tile's products cost less than one row after the other (LOG.md)

constexpr foretoken::ManyRows kMany{kFewRows, 512, 32, 1 << 20};  // the last: half of the second cache

constexpr foretoken::Kernels tiles_table(const char* name) {
  return table_of(name, 16, kMany, kMxfp4Rows, repack, pack_values, linear_repacked, weigh_by_tiles, attend, 16, pack_step);
}

}  // namespace
