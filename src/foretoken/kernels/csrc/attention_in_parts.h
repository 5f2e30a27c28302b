// Attention over places in int8 by the kernels that it consists of: what it gives where an instruction set has none for all of
// it, and what such a kernel must equal.
#pragma once

#include "kernels.h"

namespace foretoken {

// scores: room for kScoresApart numbers of each query. weights: for as many queries as `coded_bytes` says for int8, of
// kCodedPlaces inputs.
inline void attend_in_parts(const Kernels& kernels, const CodedPlaces& seen, const Queries& its, float* scores, char* weights) {
  static_assert(kCodedPlaces <= kTogether * kTile && kWidestKey <= kTogether * kTile);
  const std::int64_t n = its.count;
  auto multiply = [&](const Codes& w, std::int64_t outputs, std::int64_t k, const void* packed, const Results& results) {
    kernels.linear_coded(Inputs::int8, w, outputs / kTile, k, {packed, n, 0, n}, results);
  };
  multiply(seen.keys, kCodedPlaces, its.width, its.packed, {scores, kScoresApart});
  for (std::int64_t q = 0; q < n; ++q) {
    kernels.soften(Format::fp32, scores + q * kScoresApart, 0, kCodedPlaces, its.scale, its.found.tops + q, its.found.sums + q);
  }
  kernels.pack_coded(Inputs::int8, Format::int8, scores, kScoresApart, 0, n, n, kCodedPlaces, weights);
  multiply(seen.values, its.width, kCodedPlaces, weights, {its.found.outs, its.width});
}

}  // namespace foretoken
