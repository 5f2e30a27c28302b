// A cache's keys and values into int8, some places at a time.
#pragma once

#include <cstdint>

#include "isas.h"
#include "kernels.h"
#include "pool.h"

namespace foretoken {

struct PlacesShape {
  std::int64_t layers, heads, width;
};

// Codes kCodedPlaces places of all layers and key heads. keys, values: of the first layer, one place behind the other, and
// `layer_bytes` from one layer to the next. coded: CodedPlaces of head after head, layer after layer.
void code_places(const Kernels& kernels, Pool& pool, Format format, const PlacesShape& shape, const char* keys,
                 const char* values, std::int64_t layer_bytes, char* coded);

}  // namespace foretoken
