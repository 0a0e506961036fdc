// Where cudaMalloc puts segments: the rule of each system, as recordings of real GPUs show it, and two for proofs.
// It does not know the process's other mappings. On Linux a gap that the real driver once passed over
// is taken to be occupied.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "settings.hpp"

namespace ullage {

enum class Placement : int {
  LINUX = 0,       // chunks of whole 32 MiB, each below the one before; what is left in them serves first
  WINDOWS = 1,     // the lowest gap that is large enough
  ASCENDING = 2,   // never reused, no gaps
  DESCENDING = 3,  // never reused
};

// A stretch of addresses.
struct Stretch {
  Bytes address, size;
  Bytes end() const { return address + size; }
};

// Free stretches, by size and then by address. Their sizes are few: n different ones take n * n / 2 pages between them.
class Gaps {
 public:
  void add(const Stretch& gap);
  void remove(const Stretch& gap);
  std::optional<Stretch> lowest(Bytes size) const;  // of those that hold so much
  std::optional<Stretch> highest(Bytes size) const;

 private:
  std::map<Bytes, std::set<Bytes>> by_size_;
};

class AddressSpace {
 public:
  // `has_addresses`: some are known and will be given; else everything begins at a fixed place.
  AddressSpace(Placement placement, bool has_addresses);

  bool keeps_gaps() const { return placement_ == Placement::LINUX || placement_ == Placement::WINDOWS; }
  // Where a segment of so many whole pages would go.
  Bytes foretell(Bytes size) const;
  Bytes place(Bytes size);
  bool is_free(const Stretch& stretch) const;
  // A segment is known to be there; `placed_now`: the driver has just put it there, so what it passed over is not free.
  void take(const Stretch& segment, bool placed_now);
  void release(Bytes address);

 private:
  // What the driver took from the system at once. On Windows there is one, without an end.
  struct Chunk {
    Bytes size;
    std::int64_t segments;
  };
  struct Piece {
    Bytes size;
    bool is_ours;  // else the driver passed over it
  };
  using Chunks = std::map<Bytes, Chunk>;

  void learn(const Stretch& segment);
  void refuse(const Stretch& gap, bool in_chunk);
  void forget_refused(const Stretch& stretch);
  void put(const Stretch& piece, bool is_ours);
  void take_out(std::map<Bytes, Piece>::iterator piece);
  Chunks::iterator cover(const Stretch& segment);
  Chunks::iterator add_chunk(const Stretch& chunk, std::int64_t segments);
  void drop_chunk(Chunks::iterator chunk);
  Chunks::iterator chunk_at(Bytes address);
  Stretch hole_above(Chunks::const_iterator chunk) const;
  Stretch room_around(const Stretch& stretch) const;
  void add_rests(const Stretch& chunk);
  void remove_rests(const Stretch& chunk);

  Placement placement_;
  Bytes next_;                     // ASCENDING, DESCENDING
  Bytes top_;                      // the end of the highest chunk that has been there
  std::map<Bytes, Piece> pieces_;  // segments by address, and what is not free
  Chunks chunks_;
  Gaps rests_, holes_;  // inside of chunks; between chunks
};

}  // namespace ullage
