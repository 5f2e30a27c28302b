// Instruction levels, from slow to fast: the order of `LEVELS` in kernels/native.py.
#pragma once

#include <cstdint>

namespace foretoken {

enum class Level : int { generic = 0, avx2 = 1, avx512 = 2 };

// Whether this machine and its operating system can run a level.
bool supports(Level level);

// Index of the largest of n > 0 floats, the lowest on a tie; -1 if any is NaN. Every level gives the same answer.
std::int64_t argmax(const float* values, std::int64_t n, Level level);

}  // namespace foretoken
