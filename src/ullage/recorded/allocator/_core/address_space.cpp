#include "address_space.hpp"

#include <algorithm>
#include <iterator>

namespace ullage {
namespace {

// Where addresses begin. They matter only where blocks are equally large (torch 2.11 takes the lower address).
constexpr Bytes LOWEST = 0x700000000000, HIGHEST = 0x780000000000;
constexpr Bytes CHUNK = 32 * MIB;
constexpr Bytes END = Bytes{1} << 63;  // of all addresses
constexpr std::int64_t NEVER_EMPTY = std::int64_t{1} << 62;

Bytes down_to(Bytes value, Bytes unit) { return value / unit * unit; }
Bytes up_to(Bytes value, Bytes unit) { return down_to(value + unit - 1, unit); }

}  // namespace

// ---- gaps

void Gaps::add(const Stretch& gap) {
  if (gap.size) by_size_[gap.size].insert(gap.address);
}

void Gaps::remove(const Stretch& gap) {
  const auto found = by_size_.find(gap.size);
  if (found == by_size_.end()) return;
  found->second.erase(gap.address);
  if (found->second.empty()) by_size_.erase(found);
}

std::optional<Stretch> Gaps::lowest(Bytes size) const {
  std::optional<Stretch> best;
  for (auto at = by_size_.lower_bound(size); at != by_size_.end(); ++at)
    if (!best || *at->second.begin() < best->address) best = Stretch{*at->second.begin(), at->first};
  return best;
}

std::optional<Stretch> Gaps::highest(Bytes size) const {
  std::optional<Stretch> best;
  for (auto at = by_size_.lower_bound(size); at != by_size_.end(); ++at)
    if (!best || *at->second.rbegin() > best->address) best = Stretch{*at->second.rbegin(), at->first};
  return best;
}

// ---- segments

AddressSpace::AddressSpace(Placement placement, bool has_addresses)
    : placement_(placement),
      next_(placement == Placement::DESCENDING ? HIGHEST : LOWEST),
      top_(has_addresses ? 0 : HIGHEST) {
  if (placement == Placement::WINDOWS && !has_addresses) add_chunk({LOWEST, END - LOWEST}, NEVER_EMPTY);
}

Bytes AddressSpace::foretell(Bytes size) const {
  if (placement_ == Placement::ASCENDING) return next_;
  if (placement_ == Placement::DESCENDING) return next_ - size;
  if (const auto rest = rests_.lowest(size)) return rest->address;
  if (placement_ == Placement::WINDOWS) return LOWEST;  // nothing is known yet
  const Bytes chunk = up_to(size, CHUNK);
  if (const auto hole = holes_.highest(chunk)) return hole->end() - chunk;
  const Bytes lowest = chunks_.empty() ? top_ ? top_ : HIGHEST : chunks_.begin()->first;
  return lowest > chunk ? lowest - chunk : up_to(top_, CHUNK);  // no GPU is so large that this matters
}

Bytes AddressSpace::place(Bytes size) {
  const Bytes address = foretell(size ? size : 1);
  if (placement_ == Placement::ASCENDING) next_ += size;
  else if (placement_ == Placement::DESCENDING) return next_ -= size;
  else if (size) take({address, size}, false);
  return address;
}

bool AddressSpace::is_free(const Stretch& stretch) const {
  if (stretch.address >= END || stretch.size >= END - stretch.address) return false;
  for (auto at = pieces_.lower_bound(stretch.address); at != pieces_.end() && at->first < stretch.end(); ++at)
    if (at->second.is_ours) return false;
  const auto after = pieces_.lower_bound(stretch.address);
  if (after == pieces_.begin()) return true;
  const auto before = std::prev(after);
  return !before->second.is_ours || before->first + before->second.size <= stretch.address;
}

void AddressSpace::take(const Stretch& segment, bool placed_now) {
  if (placement_ == Placement::ASCENDING) next_ = std::max(next_, segment.end());
  if (placement_ == Placement::DESCENDING) next_ = std::min(next_, segment.address);
  if (!keeps_gaps() || !segment.size || !is_free(segment)) return;  // no recording of a real GPU has two in one place
  forget_refused(segment);
  if (placed_now) learn(segment);
  cover(segment)->second.segments++;
  put(segment, true);
}

void AddressSpace::release(Bytes address) {
  const auto piece = pieces_.find(address);
  if (piece == pieces_.end() || !piece->second.is_ours) return;
  const auto chunk = chunk_at(address);
  take_out(piece);
  if (--chunk->second.segments == 0) drop_chunk(chunk);
}

// What comes before the segment's place in the driver's search, and would have held it, is not free.
void AddressSpace::learn(const Stretch& segment) {
  const auto touches = [&](const Stretch& gap) { return gap.address < segment.end() && segment.address < gap.end(); };
  for (auto rest = rests_.lowest(segment.size); rest; rest = rests_.lowest(segment.size)) {
    if (touches(*rest) || placement_ == Placement::WINDOWS) return;
    refuse(*rest, true);
  }
  const Bytes chunk = up_to(segment.size, CHUNK);
  for (auto hole = holes_.highest(chunk); hole && !touches(*hole); hole = holes_.highest(chunk)) refuse(*hole, false);
}

void AddressSpace::refuse(const Stretch& gap, bool in_chunk) {
  if (!in_chunk) add_chunk(gap, NEVER_EMPTY);
  put(gap, false);
}

void AddressSpace::forget_refused(const Stretch& stretch) {
  auto at = pieces_.lower_bound(stretch.address);
  if (at != pieces_.begin() && std::prev(at)->first + std::prev(at)->second.size > stretch.address) --at;
  while (at != pieces_.end() && at->first < stretch.end()) {
    const auto next = std::next(at);
    const auto chunk = chunk_at(at->first);
    take_out(at);
    if (chunk->second.segments >= NEVER_EMPTY && placement_ == Placement::LINUX) drop_chunk(chunk);
    at = next;
  }
}

// ---- what is free inside of chunks

// The range without pieces around a given one in a chunk.
Stretch AddressSpace::room_around(const Stretch& stretch) const {
  const auto chunk = std::prev(chunks_.upper_bound(stretch.address));
  Bytes from = chunk->first, to = chunk->first + chunk->second.size;
  const auto after = pieces_.lower_bound(stretch.end());
  if (after != pieces_.end()) to = std::min(to, after->first);
  const auto at = pieces_.lower_bound(stretch.address);
  if (at != pieces_.begin()) from = std::max(from, std::prev(at)->first + std::prev(at)->second.size);
  return {from, to - from};
}

void AddressSpace::put(const Stretch& piece, bool is_ours) {
  const Stretch room = room_around(piece);
  rests_.remove(room);
  rests_.add({room.address, piece.address - room.address});
  rests_.add({piece.end(), room.end() - piece.end()});
  pieces_[piece.address] = {piece.size, is_ours};
}

void AddressSpace::take_out(std::map<Bytes, Piece>::iterator piece) {
  const Stretch taken{piece->first, piece->second.size};
  pieces_.erase(piece);
  const Stretch room = room_around(taken);
  rests_.remove({room.address, taken.address - room.address});
  rests_.remove({taken.end(), room.end() - taken.end()});
  rests_.add(room);
}

void AddressSpace::add_rests(const Stretch& chunk) {
  Bytes from = chunk.address;
  for (auto at = pieces_.lower_bound(chunk.address); at != pieces_.end() && at->first < chunk.end(); ++at) {
    rests_.add({from, at->first - from});
    from = at->first + at->second.size;
  }
  rests_.add({from, chunk.end() - from});
}

void AddressSpace::remove_rests(const Stretch& chunk) {
  Bytes from = chunk.address;
  for (auto at = pieces_.lower_bound(chunk.address); at != pieces_.end() && at->first < chunk.end(); ++at) {
    rests_.remove({from, at->first - from});
    from = at->first + at->second.size;
  }
  rests_.remove({from, chunk.end() - from});
}

// ---- chunks, and what is free between them

AddressSpace::Chunks::iterator AddressSpace::chunk_at(Bytes address) { return std::prev(chunks_.upper_bound(address)); }

Stretch AddressSpace::hole_above(Chunks::const_iterator chunk) const {
  const Bytes from = chunk->first + chunk->second.size;
  const auto above = std::next(chunk);
  const Bytes to = above == chunks_.end() ? top_ : above->first;
  return {from, to > from ? to - from : 0};
}

AddressSpace::Chunks::iterator AddressSpace::add_chunk(const Stretch& chunk, std::int64_t segments) {
  const auto above = chunks_.lower_bound(chunk.address);
  const bool is_lowest = above == chunks_.begin();
  if (!is_lowest) holes_.remove(hole_above(std::prev(above)));
  const auto added = chunks_.emplace_hint(above, chunk.address, Chunk{chunk.size, segments});
  top_ = std::max(top_, chunk.end());
  if (!is_lowest) holes_.add(hole_above(std::prev(added)));
  holes_.add(hole_above(added));
  add_rests(chunk);
  return added;
}

// A chunk is returned to the system, including the part that was not free.
void AddressSpace::drop_chunk(Chunks::iterator chunk) {
  const Stretch whole{chunk->first, chunk->second.size};
  remove_rests(whole);
  holes_.remove(hole_above(chunk));
  const bool is_lowest = chunk == chunks_.begin();
  if (!is_lowest) holes_.remove(hole_above(std::prev(chunk)));
  const auto above = chunks_.erase(chunk);
  if (!is_lowest) holes_.add(hole_above(std::prev(above)));
  for (auto at = pieces_.lower_bound(whole.address); at != pieces_.end() && at->first < whole.end();)
    at = at->second.is_ours ? std::next(at) : pieces_.erase(at);
}

// The chunk that contains a segment: an existing one, a new one, or several merged with what is between them.
AddressSpace::Chunks::iterator AddressSpace::cover(const Stretch& segment) {
  const bool is_linux = placement_ == Placement::LINUX;
  Bytes from = is_linux ? down_to(segment.address, CHUNK) : segment.address;
  Bytes to = is_linux ? up_to(segment.end(), CHUNK) : END;
  auto first = chunks_.upper_bound(segment.address);
  if (first != chunks_.begin()) {
    const auto before = std::prev(first);
    if (before->first + before->second.size >= segment.end()) return before;
    if (before->first + before->second.size > from) first = before;
  }
  std::int64_t segments = 0;
  while (first != chunks_.end() && first->first < to) {
    const Stretch chunk{first->first, first->second.size};
    from = std::min(from, chunk.address);
    to = std::max(to, chunk.end());
    segments += first->second.segments;
    const auto next = std::next(first);
    drop_chunk(first);
    first = next;
  }
  return add_chunk({from, to - from}, is_linux ? segments : NEVER_EMPTY);
}

}  // namespace ullage
