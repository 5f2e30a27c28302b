// How fast this machine reads memory: the ceiling that kernels are measured against.
#pragma once

#include <cstdint>

#include "isas.h"

namespace foretoken {

// Reads all of it once with the widest loads of an instruction set; each thread has a share of its own, read as
// `streams` (1, 2, 4, 8 or 16) runs side by side. Returns seconds.
double read_once(Isa isa, int threads, int streams, const char* memory, std::int64_t bytes);

}  // namespace foretoken
