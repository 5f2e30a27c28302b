// Keys and values into int8, for drafts: each key has a scale, and so has each number of all values together. Part of isa.inl.
//
// Codes and scales are those of `quantise` (formats/quantiser.py), for finite numbers. A target's committed keys and values are
// finite. If others ever are not, what a draft makes of them does not matter.

namespace {

using foretoken::CodedPlaces;
using foretoken::kCodedPlaces;

constexpr int64_t kInt8Bytes = foretoken::block_bytes(Format::int8);
constexpr float kLeastScale = 0x1p-100f, kMost = 0x1p100f;  // larger numbers count as kMost

// 16 scales of numbers whose largest are these, and by what the numbers are divided. Of numbers that are too small both make
// zeros.
struct Scales {
  V16 scale, divisor;

  explicit Scales(V16 largest) {
    float scales[16], divisors[16];
    store(scales, div(min(largest, set1(kMost)), set1(127.0f)));
    for (int i = 0; i < 16; ++i) {
      const bool small = scales[i] < kLeastScale;
      divisors[i] = small ? __builtin_inff() : scales[i];
      if (small) scales[i] = 0.0f;
    }
    scale = load(scales);
    divisor = load(divisors);
  }
};

// Its lowest byte is the number, rounded to a whole one.
inline V16 whole(V16 v, V16 divisor) {
  const V16 limited = max(min(v, set1(kMost)), set1(-kMost));
  return add(div(limited, divisor), set1(kWholeFloat));
}

template <Format F>
void code_keys(const Places& places, int64_t width, std::uint8_t* codes, float* scales) {
  const int64_t blocks = blocks_of(width);
  for (int64_t first = 0; first < kCodedPlaces; first += kTile) {
    float most[kTile];
    auto numbers = [&](int64_t i, int64_t at) { return at < width ? load_as<F>(places.key(first + i), at) : set1(0.0f); };
    for (int64_t i = 0; i < kTile; ++i) {
      V16 top = set1(0.0f);
      for (int64_t at = 0; at < width; at += 16) top = max(magnitude(numbers(i, at)), top);
      most[i] = largest(top);
    }
    const Scales made(load(most));
    float divisors[kTile];
    store(scales + first, made.scale);
    store(divisors, made.divisor);
    for (int64_t block = 0; block < blocks; ++block, codes += kInt8Bytes) {
      for (int64_t i = 0; i < kTile; ++i) {
        const V16 by = set1(divisors[i]);
        std::int32_t columns[8];
        store_bytes(whole(numbers(i, block * 32), by), whole(numbers(i, block * 32 + 16), by), columns);
        for (int64_t j = 0; j < 8; ++j) std::memcpy(codes + 64 * j + 4 * i, columns + j, 4);
      }
    }
  }
}

template <Format F>
void code_values(const Places& places, int64_t width, std::uint8_t* codes, float* scales) {
  for (int64_t at = 0; at < width; at += kTile) {
    auto numbers = [&](int64_t i) { return load_as<F>(places.value(i), at); };
    V16 most = set1(0.0f);
    for (int64_t i = 0; i < kCodedPlaces; ++i) most = max(magnitude(numbers(i)), most);
    const Scales made(most);
    store(scales + at, made.scale);
    for (int64_t i = 0; i < kCodedPlaces; i += 4, codes += 64) {
      auto byte = [&](int64_t place) { return masked(as_ints(whole(numbers(i + place), made.divisor)), 0xffu); };
      const Ints column = plus(plus(byte(2), left<8>(byte(3))), plus(left<16>(byte(0)), left<24>(byte(1))));
      store(reinterpret_cast<float*>(codes), as_floats(column));
    }
  }
}

template <Format F>
void code_places_as(const Places& places, int64_t width, char* coded) {
  const CodedPlaces to = CodedPlaces::at(coded, width);
  auto codes = [](const Codes& w) { return const_cast<std::uint8_t*>(w.codes); };
  auto scales = [](const Codes& w) { return static_cast<float*>(const_cast<void*>(w.scales)); };
  code_keys<F>(places, width, codes(to.keys), scales(to.keys));
  code_values<F>(places, width, codes(to.values), scales(to.values));
}

void code_places(Format format, const Places& places, int64_t width, char* coded) {
  if (format == Format::bf16) return code_places_as<Format::bf16>(places, width, coded);
  if (format == Format::fp16) return code_places_as<Format::fp16>(places, width, coded);
  code_places_as<Format::fp32>(places, width, coded);
}

}  // namespace
