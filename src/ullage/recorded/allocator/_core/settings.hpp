// The allocator's input: settings with their defaults resolved.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace ullage {

using Bytes = std::uint64_t;  // as PyTorch's size_t: sizes near 2^64 wrap here as they do there

inline constexpr Bytes KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;
inline constexpr Bytes UNLIMITED = std::numeric_limits<Bytes>::max();

// c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp, torch 2.11 to 2.15.
inline constexpr Bytes SMALLEST_BLOCK = 512;         // every size is a multiple
inline constexpr Bytes LARGEST_SMALL = MIB;          // up to here a request is the small pool's
inline constexpr Bytes SMALL_SEGMENT = 2 * MIB;      // what the small pool asks the driver for
inline constexpr Bytes OWN_SEGMENT_FROM = 10 * MIB;  // a request of this size or more gets its own segment
inline constexpr Bytes SEGMENT_ROUNDING = 2 * MIB;
inline constexpr int ROUNDUP_SLOTS = 16;  // powers of two from 1 MiB to 64 GiB

struct Settings {
  Bytes max_split_bytes = UNLIMITED;
  Bytes max_non_split_rounding_bytes = 20 * MIB;
  Bytes large_segment_bytes = 20 * MIB;
  double garbage_collection_threshold = 0;
  std::array<Bytes, ROUNDUP_SLOTS> roundup_divisions{};
  bool expandable_segments = false;
  bool throw_on_oom = false;
  Bytes reserve_bytes = 0;  // address space of one expandable segment; 0: the default, 9/8 of the GPU

  Bytes round_size(Bytes size) const;
  Bytes segment_size(Bytes rounded) const;
};

}  // namespace ullage
