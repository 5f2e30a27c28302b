// A cache's keys and values into int8, some places at a time.
#include "coded_places.h"

namespace foretoken {

void code_places(const Kernels& kernels, Pool& pool, Format format, const PlacesShape& shape, const char* keys,
                 const char* values, std::int64_t layer_bytes, char* coded) {
  const FlushSubnormals flush;
  const std::int64_t head_bytes = shape.width * static_cast<std::int64_t>(size_of(format)), bytes = CodedPlaces::bytes(shape.width);
  pool.run(shape.layers * shape.heads, [&](std::int64_t piece, int) {
    const std::int64_t layer = piece / shape.heads, head = piece % shape.heads;
    const void *key[kCodedPlaces], *value[kCodedPlaces];
    for (std::int64_t i = 0; i < kCodedPlaces; ++i) {
      const std::int64_t at = layer * layer_bytes + i * shape.heads * head_bytes;
      key[i] = keys + at;
      value[i] = values + at;
    }
    kernels.code_places(format, {key, value, kCodedPlaces, head * head_bytes, head_bytes}, shape.width, coded + piece * bytes);
  });
}

}  // namespace foretoken
