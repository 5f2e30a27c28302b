// The bindings, and nothing else. Python checks types and shapes (kernels/native.py); kernels take pointers and sizes.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "levels.h"

namespace nb = nanobind;
using foretoken::Level;

NB_MODULE(_native, m) {
  m.doc() = "Foretoken's native kernels.";
  m.def(
      "supports",
      [](const char* name) {
        const std::string wanted = name;
        if (wanted == "generic") return foretoken::supports(Level::generic);
        if (wanted == "avx2") return foretoken::supports(Level::avx2);
        if (wanted == "avx512") return foretoken::supports(Level::avx512);
        return false;
      },
      nb::arg("level"), "Whether this machine can run an instruction level.");
  m.def(
      "argmax",
      [](std::uintptr_t values, std::int64_t n, int level) {
        nb::gil_scoped_release release;
        return foretoken::argmax(reinterpret_cast<const float*>(values), n, static_cast<Level>(level));
      },
      nb::arg("values"), nb::arg("n"), nb::arg("level"),
      "Index of the largest of n floats, the lowest on a tie; -1 if any is NaN.");
}
