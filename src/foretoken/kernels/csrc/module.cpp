// The bindings, and nothing else. Python checks types and shapes (kernels/refusals.py); kernels take pointers and sizes.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bandwidth.h"
#include "coded_places.h"
#include "isas.h"
#include "matrix.h"
#include "plan.h"

namespace nb = nanobind;
using namespace foretoken;
using Address = std::uintptr_t;
using Numbers = std::vector<std::int64_t>;

namespace {

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

std::vector<float> floats(Address address, std::int64_t n) {
  if (!address) return {};
  return {at<const float>(address), at<const float>(address) + n};
}

const Kernels* kernels_at(int isa) {
  const Kernels* kernels = kernels_of(static_cast<Isa>(isa));
  if (!kernels) throw std::invalid_argument("this machine lacks the instruction set");
  return kernels;
}

// data, outputs, inputs, bias or 0, format, whether it is repacked, what rows are rounded to, scales or 0, group
constexpr std::size_t kMatrix = 9;

Matrix matrix(const Numbers& v, std::size_t from) {
  auto number = [&](std::size_t i) { return v.at(from + i); };
  auto address = [&](std::size_t i) { return static_cast<Address>(number(i)); };
  return {at<const char>(address(0)), number(1), number(2), floats(address(3), number(1)),
          static_cast<Format>(number(4)), number(5) != 0, static_cast<Inputs>(number(6)),
          at<const char>(address(7)), number(8)};
}

// input norm, post norm, query norm or 0, key norm or 0, window or 0, then seven matrices
Layer layer(const Numbers& v, const Shape& shape) {
  Layer l;
  auto norm = [&](std::size_t i, std::int64_t n) { return floats(static_cast<Address>(v.at(i)), n); };
  l.input_norm = norm(0, shape.hidden);
  l.post_norm = norm(1, shape.hidden);
  l.query_norm = norm(2, shape.head_dim);
  l.key_norm = norm(3, shape.head_dim);
  l.window = v.at(4);
  Matrix* all[] = {&l.query, &l.key, &l.value, &l.output, &l.gate, &l.up, &l.down};
  for (std::size_t i = 0; i < 7; ++i) *all[i] = matrix(v, 5 + kMatrix * i);
  return l;
}

// from, to, length, slot, keys, values, bytes a layer, first layer; number of blocks in int8, bytes a layer, first layer,
// number of layers, then where each block lies; then spans: start, end, keys, values, bytes a layer, first layer
Segment segment(const Numbers& v) {
  Segment s{v.at(0), v.at(1), v.at(2), v.at(3), at<char>(static_cast<Address>(v.at(4))),
            at<char>(static_cast<Address>(v.at(5))), v.at(6), v.at(7), {}, v.at(9), v.at(10), v.at(11), {}};
  const std::size_t spans = 12 + static_cast<std::size_t>(v.at(8));
  for (std::size_t i = 12; i < spans; ++i) s.coded.push_back(at<const char>(static_cast<Address>(v.at(i))));
  for (std::size_t i = spans; i < v.size(); i += 6) {
    s.spans.push_back({v.at(i), v.at(i + 1), at<const char>(static_cast<Address>(v.at(i + 2))),
                       at<const char>(static_cast<Address>(v.at(i + 3))), v.at(i + 4), v.at(i + 5)});
  }
  return s;
}

Rows rows(Numbers tokens, Numbers positions, const std::vector<Address>& cosines, const std::vector<Address>& sines,
          const std::vector<Numbers>& segments, std::vector<Numbers> paths) {
  Rows r;
  r.tokens = std::move(tokens);
  r.positions = std::move(positions);
  for (Address a : cosines) r.cosines.push_back(at<const float>(a));
  for (Address a : sines) r.sines.push_back(at<const float>(a));
  for (const Numbers& s : segments) r.segments.push_back(segment(s));
  r.paths = std::move(paths);
  return r;
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Foretoken's native kernels.";
  nb::set_leak_warnings(false);  // a plan that lives until the interpreter ends is not a leak
  m.def(
      "why_not",
      [](int isa) -> std::string {
        const char* reason = nullptr;
        return kernels_of(static_cast<Isa>(isa), &reason) ? "" : reason;
      },
      nb::arg("isa"), "Why this machine cannot run an instruction set; empty if it can.");

  nb::class_<Plan>(m, "Plan")
      .def(
          "__init__",
          [](Plan* self, const Numbers& shape, float eps, const std::vector<Numbers>& layers, Address embedding,
             Address norm, const Numbers& head, int isa, int threads) {
            auto format = [&](std::size_t i) { return static_cast<Format>(shape.at(i)); };
            const Shape s{shape.at(0), shape.at(1), shape.at(2), shape.at(3), shape.at(4),
                          shape.at(5), eps,         format(6),   format(7)};
            std::vector<Layer> all;
            for (const Numbers& l : layers) all.push_back(layer(l, s));
            new (self) Plan(s, std::move(all), at<const char>(embedding), floats(norm, s.hidden), matrix(head, 0),
                            kernels_at(isa), Pool::of(threads));
          })
      .def("run",
           [](Plan& plan, Numbers tokens, Numbers positions, const std::vector<Address>& cosines,
              const std::vector<Address>& sines, const std::vector<Numbers>& segments, std::vector<Numbers> paths,
              bool embed, std::int64_t lo, std::int64_t hi, Address hidden, Address logits, Address best,
              std::int64_t before, std::int64_t of, Address entering) {
             Rows r = rows(std::move(tokens), std::move(positions), cosines, sines, segments, std::move(paths));
             r.before = before;
             r.of = of;
             nb::gil_scoped_release release;
             plan.run(r, embed, lo, hi, at<float>(hidden), at<float>(logits), at<std::int64_t>(best),
                      at<const float>(entering));
           })
      .def("head",
           [](Plan& plan, std::int64_t n, Address hidden, Address logits, Address best) {
             nb::gil_scoped_release release;
             plan.head(n, at<const float>(hidden), at<float>(logits), at<std::int64_t>(best));
           })
      .def("chain",
           [](Plan& plan, std::int64_t token, Numbers positions, const std::vector<Address>& cosines,
              const std::vector<Address>& sines, const std::vector<Numbers>& segments, std::vector<Numbers> paths) {
             Numbers tokens(positions.size());
             Rows r = rows({token}, std::move(positions), cosines, sines, segments, std::move(paths));
             nb::gil_scoped_release release;
             tokens.resize(static_cast<std::size_t>(plan.chain(std::move(r), tokens.data())));
             return tokens;
           })
      .def("attention",
           [](Plan& plan, Numbers positions, const std::vector<Numbers>& segments, std::vector<Numbers> paths,
              std::int64_t layer, Address query, Address out) {
             const Rows r = rows({}, std::move(positions), {}, {}, segments, std::move(paths));
             nb::gil_scoped_release release;
             plan.attention(r, layer, at<const float>(query), at<float>(out));
           })
      .def("slow_down", [](Plan& plan, int thread, int microseconds) { plan.pool().slow_down(thread, microseconds); });

  m.def("linear", [](int isa, int threads, Address x, std::int64_t n, const Numbers& weight, Address out) {
    const Kernels* kernels = kernels_at(isa);
    const Matrix w = matrix(weight, 0);
    nb::gil_scoped_release release;
    const std::shared_ptr<Pool> pool = Pool::of(threads);
    const auto hold = pool->lock();
    const FlushSubnormals flush;
    const Arithmetic arithmetic{kernels, pool.get()};
    static thread_local Buffer<char> packed;
    static thread_local std::vector<Buffer<float>> tiles;
    at_least(packed, arithmetic.packed_bytes(w, n));
    at_least(tiles, threads);
    for (auto& tile : tiles) at_least(tile, arithmetic.room_for(n));
    arithmetic.pack(w, at<const float>(x), n, packed.data());
    arithmetic.multiply({{&w, at<float>(out), w.outputs, false}}, packed.data(), n, tiles);
  });
  m.def("repacks", [](int isa) { return kernels_at(isa)->repack != nullptr; },
        "Whether an instruction set has a layout of its own for bf16 weights.");
  m.def("repack", [](int isa, int threads, Address data, std::int64_t outputs, std::int64_t inputs) {
    const Kernels* kernels = kernels_at(isa);
    nb::gil_scoped_release release;
    const std::shared_ptr<Pool> pool = Pool::of(threads);
    const auto hold = pool->lock();
    Arithmetic{kernels, pool.get()}.repack(at<char>(data), outputs, inputs);
  });
  m.def("norm", [](int isa, Address x, Address weight, float eps, std::int64_t n, std::int64_t width, Address out) {
    const FlushSubnormals flush;
    for (std::int64_t i = 0; i < n; ++i) {
      kernels_at(isa)->norm(at<const float>(x) + i * width, at<const float>(weight), eps, width, at<float>(out) + i * width);
    }
  });
  m.def("silu_mul", [](int isa, Address gate, Address up, std::int64_t n, Address out) {
    const FlushSubnormals flush;
    kernels_at(isa)->silu_mul(at<const float>(gate), at<const float>(up), n, at<float>(out));
  });
  m.def("rotate", [](int isa, Address heads, Address cosines, Address sines, std::int64_t n, std::int64_t half) {
    const FlushSubnormals flush;
    for (std::int64_t i = 0; i < n; ++i) {
      kernels_at(isa)->rotate(at<float>(heads) + i * 2 * half, at<const float>(cosines) + i * half,
                                at<const float>(sines) + i * half, half);
    }
  });
  m.def("store", [](int isa, int format, Address x, std::int64_t n, Address out) {
    kernels_at(isa)->store(static_cast<Format>(format), at<const float>(x), n, at<char>(out));
  });
  m.def("load", [](int isa, int format, Address x, std::int64_t n, Address out) {
    const FlushSubnormals flush;
    kernels_at(isa)->embed(static_cast<Format>(format), at<const char>(x), n, at<float>(out));
  });
  m.def("coded_bytes", [](std::int64_t width) { return CodedPlaces::bytes(width); },
        "The bytes of the keys and values of one key head at 256 places in int8.");
  m.def("code_places", [](int isa, int threads, int format, std::int64_t layers, std::int64_t heads, std::int64_t width,
                          Address keys, Address values, std::int64_t layer_bytes, Address coded) {
    const Kernels* kernels = kernels_at(isa);
    nb::gil_scoped_release release;
    const std::shared_ptr<Pool> pool = Pool::of(threads);
    const auto hold = pool->lock();
    code_places(*kernels, *pool, static_cast<Format>(format), {layers, heads, width}, at<const char>(keys),
                at<const char>(values), layer_bytes, at<char>(coded));
  });
  m.def("argmax", [](int isa, Address values, std::int64_t n) {
    nb::gil_scoped_release release;
    return kernels_at(isa)->argmax(at<const float>(values), n);
  });
  m.def("log_total", [](int isa, Address logits, std::int64_t n, double temperature) {
    nb::gil_scoped_release release;
    const FlushSubnormals flush;
    return kernels_at(isa)->log_total(at<const float>(logits), n, static_cast<float>(temperature));
  });
  m.def("rank", [](int isa, Address logits, std::int64_t n, double temperature, std::int64_t top_k, double top_p,
                   double min_p, std::int64_t count, bool noise, std::uint64_t seed, std::uint32_t completion,
                   std::uint32_t step, std::uint32_t stream) -> nb::object {
    const Kernels* kernels = kernels_at(isa);
    const Choice choice{static_cast<float>(temperature), top_k, top_p, min_p, noise, seed, completion, step, stream};
    static thread_local Buffer<char> memory;
    static thread_local Numbers tokens;
    static thread_local std::vector<double> scores;
    std::int64_t found = 0;
    {
      nb::gil_scoped_release release;
      const KeepSubnormals keep;
      at_least(memory, rank_bytes(n, count));
      at_least(tokens, std::min(count, n));
      at_least(scores, std::min(count, n));
      found = kernels->rank(at<const float>(logits), n, choice, count, memory.data(), tokens.data(), scores.data());
    }
    if (found < 0) return nb::none();
    nb::list ids, values;
    for (std::int64_t i = 0; i < found; ++i) {
      ids.append(tokens[static_cast<std::size_t>(i)]);
      values.append(scores[static_cast<std::size_t>(i)]);
    }
    return nb::make_tuple(ids, values);
  });
  m.def("read", [](int isa, int threads, int streams, Address memory, std::int64_t bytes) {
    nb::gil_scoped_release release;
    return read_once(static_cast<Isa>(isa), threads, streams, at<const char>(memory), bytes);
  }, "Reads memory once, in some streams a thread, and returns the seconds that it took.");
}
