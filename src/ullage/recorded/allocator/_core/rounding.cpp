// How sizes are rounded under the settings: requests, and the segments that are made for them.
#include "settings.hpp"

namespace ullage {
namespace {

int bit_width(Bytes size) { return size ? 64 - __builtin_clzll(size) : 0; }

Bytes multiple_of(Bytes size, Bytes unit) { return unit * ((size + unit - 1) / unit); }

// DeviceCachingAllocator::roundup_power2_next_division (torch 2.11): the next of `divisions` steps between powers of two.
Bytes next_division(Bytes size, Bytes divisions) {
  if (size <= 4 || divisions <= 1 || (size & (size - 1)) == 0) return size;
  const Bytes floor = Bytes{1} << (bit_width(size) - 1), step = floor >> (bit_width(divisions) - 1);
  if (step == 0) return floor << 1;
  return multiple_of(size, step);
}

}  // namespace

Bytes Settings::round_size(Bytes size) const {
  if (size < SMALLEST_BLOCK) return SMALLEST_BLOCK;
  const int power = bit_width(size >> 20) - 1;  // below 1 MiB the first slot, above 64 GiB the last
  const Bytes divisions = roundup_divisions[power < 0 ? 0 : power >= ROUNDUP_SLOTS ? ROUNDUP_SLOTS - 1 : power];
  if (divisions > 1 && size > SMALLEST_BLOCK * divisions) return next_division(size, divisions);
  return multiple_of(size, SMALLEST_BLOCK);
}

Bytes Settings::segment_size(Bytes rounded) const {
  if (rounded <= LARGEST_SMALL) return SMALL_SEGMENT;
  if (rounded < OWN_SEGMENT_FROM) return large_segment_bytes;
  return multiple_of(rounded, SEGMENT_ROUNDING);
}

}  // namespace ullage
