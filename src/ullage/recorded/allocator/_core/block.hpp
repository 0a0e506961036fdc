// A block: a piece of a segment, allocated or free, between its neighbours.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "driver.hpp"
#include "free_set.hpp"
#include "settings.hpp"

namespace ullage {

using BlockId = std::int32_t;
inline constexpr BlockId NONE = -1;

struct Block {
  Bytes address = 0, size = 0;
  std::int64_t requested = 0;  // the requested bytes; for a free block those of its last use
  BlockId before = NONE, after = NONE;
  std::int32_t stream = 0;         // index of Allocator::streams_
  std::int32_t pool = 0;           // index of Allocator::pools_
  std::int32_t segment = 0;        // index of Allocator::segments_
  std::int32_t events = 0;         // recorded and not yet completed
  std::uint64_t made = 0;          // counts blocks, in the order in which they were made
  std::uint64_t lookups_then = 0;  // of its pool when it was freed: the garbage collector's clock
  bool allocated = false;
  bool mapped = true;
  bool expandable = false;
  bool has_uses = false;          // other streams use it: Allocator::uses_
  bool has_capture_uses = false;  // recorded during a capture: Allocator::capture_uses_

  bool is_split() const { return before != NONE || after != NONE; }
};

// What came from one cudaMalloc, or one reservation of address space with the pages that are mapped in it.
struct Segment {
  Range range;
  Bytes size = 0;  // of the cudaMalloc or of the reservation
  Bytes page = 0;  // expandable: bytes of a page
  bool expandable = false;
};

// The small or the large half of the default pool or of a private one.
struct Pool {
  bool small = false;
  std::int64_t owner = 0;  // the private pool's id, 0: the default pool
  std::uint64_t lookups = 0;
  std::vector<FreeSet> free;                       // by stream; streams are numbered in the order of their handles
  std::vector<std::map<Bytes, BlockId>> unmapped;  // by stream, then by address
};

}  // namespace ullage
