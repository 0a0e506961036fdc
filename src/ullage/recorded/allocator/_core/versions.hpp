// Where the allocators of PyTorch's versions differ: each difference is a predicate. ullage/recorded/settings.py (ALLOCATORS) says
// which version is which; docs/allocator.md where each was seen.
#pragma once

namespace ullage {

// Which of several equally large free blocks comes first.
enum class Ties : int {
  ADDRESS = 0,  // the lower address
  BLOCK = 1,    // the block that was made earlier; a split makes a new one in front
  SEGMENT = 2,  // the one of the older segment
};

struct Version {
  Ties ties;
  bool routes_capture;

  bool lower_address_wins_ties() const { return ties == Ties::ADDRESS; }
  bool earlier_block_wins_ties() const { return ties == Ties::BLOCK; }
  bool older_segment_wins_ties() const { return ties == Ties::SEGMENT; }
  // Every route to a private pool counts as a capture: what other streams use is not waited for.
  bool route_counts_as_capture() const { return routes_capture; }
};

}  // namespace ullage
