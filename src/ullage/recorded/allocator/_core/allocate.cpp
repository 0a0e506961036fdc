// From a request to a block: DeviceCachingAllocator::malloc and what it calls (torch 2.8 to 2.15).
#include <algorithm>

#include "allocator.hpp"

namespace ullage {

BlockId Allocator::allocate(Bytes requested, std::int32_t stream) {
  failure_ = Failure::NONE;
  if (!is_capturing()) process_events();
  const Bytes size = settings_.round_size(requested);
  const Request request{size, settings_.segment_size(size), stream, pool_for(size, stream)};
  BlockId found = find_free(request);
  if (found == NONE) {
    if (collects_garbage()) collect_garbage();
    found = take_segment(request, false);
    if (found == NONE && failure_ == Failure::NONE && release_available(request)) found = take_segment(request, false);
    if (found == NONE && failure_ == Failure::NONE && !is_capturing()) {
      release_cached();
      found = take_segment(request, true);
    }
    if (found == NONE) {
      if (failure_ == Failure::NONE) {
        failure_ = Failure::OUT_OF_MEMORY;
        counters_.ooms++;
      }
      return NONE;
    }
  }
  return hand_out(request, found, static_cast<std::int64_t>(requested));
}

std::int32_t Allocator::pool_for(Bytes size, std::int32_t stream) const {
  const bool small = size <= LARGEST_SMALL;
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    if (route->streams && std::find(route->streams->begin(), route->streams->end(), stream) == route->streams->end())
      continue;
    const auto pool = private_pools_.find(route->pool);
    if (pool == private_pools_.end()) throw InternalAssert("it1 != graph_pools.end()");  // released while routed to
    return small ? pool->second.small : pool->second.large;
  }
  return small ? SMALL_POOL : LARGE_POOL;
}

// get_free_block: the best fit. Where the first candidate may not be used, no other is tried.
BlockId Allocator::find_free(const Request& request) {
  Pool& pool = pool_at(request.pool);
  if (collects_garbage()) pool.lookups++;
  FreeSet& set = pool.free[static_cast<std::size_t>(request.stream)];
  FreeSet::Cursor cursor = set.lower_bound(request.size);
  if (cursor == set.end()) return NONE;
  if (block(set[cursor].block).expandable) {
    if (settings_.expandable_segments) {
      // A free block at the end of what is mapped counts with the address space after it: the smallest wins.
      const auto room = [&](FreeSet::Cursor at) {
        const Block& candidate = block(set[at].block);
        const bool grows = candidate.after != NONE && !block(candidate.after).mapped;
        return candidate.size + (grows ? block(candidate.after).size : 0);
      };
      for (auto next = set.next(cursor);
           next != set.end() && block(set[cursor].block).expandable && room(next) < room(cursor); next = set.next(next))
        cursor = next;
    } else {
      do cursor = set.next(cursor);
      while (cursor != set.end() && block(set[cursor].block).expandable);
      if (cursor == set.end()) return NONE;
    }
  }
  const FreeEntry found = set[cursor];
  if (request.size < settings_.max_split_bytes && found.size >= settings_.max_split_bytes) return NONE;
  if (request.size >= settings_.max_split_bytes && found.size >= request.size + settings_.max_non_split_rounding_bytes)
    return NONE;
  if (version_.lower_address_wins_ties()) note_tie(set, cursor);
  set.erase(cursor);
  return found.block;
}

// Whether another placement of segments might have had another block come first.
void Allocator::note_tie(const FreeSet& set, FreeSet::Cursor chosen) {
  if (!has_made_up_address_) return;
  const auto next = set.next(chosen);
  if (next == set.end() || set[next].size != set[chosen].size) return;
  const Block& first = block(set[chosen].block);
  const Block& other = block(set.last_as_large(chosen).block);  // those of one segment lie side by side
  if (first.segment == other.segment) return;
  if (!segment(first).range.is_told || !segment(other).range.is_told) counters_.address_ties++;
}

// alloc_block: a new segment, or pages of an expandable one.
BlockId Allocator::take_segment(const Request& request, bool is_retry) {
  const Bytes size = request.segment_size;
  if (is_retry) counters_.retries++;
  if (is_over_limit(size)) return NONE;
  if (settings_.throw_on_oom && static_cast<Bytes>(levels_.reserved) + size > std::min(allowed_, driver_.total())) {
    failure_ = Failure::REJECTED;  // before anything that is cached was freed
    counters_.rejections++;
    return NONE;
  }
  const std::int64_t owner = pool_at(request.pool).owner;
  if (settings_.expandable_segments) {
    const BlockId id = take_pages(request);
    if (id != NONE && owner) private_pool(owner).mallocs++;
    return id;
  }
  const std::optional<Range> range = driver_.allocate(size);
  if (!range) return NONE;
  if (owner) private_pool(owner).mallocs++;
  raise(&Levels::reserved, static_cast<std::int64_t>(size));
  add_segment({*range, size, 0, false});
  Block made;
  made.address = range->address;
  made.size = size;
  made.stream = request.stream;
  made.pool = request.pool;
  made.segment = static_cast<std::int32_t>(segments_.size() - 1);
  return new_block(made);
}

// should_split
bool Allocator::should_split(const Block& block, Bytes size) const {
  const Bytes rest = block.size - size;
  if (pool(block).small || settings_.expandable_segments) return rest >= SMALLEST_BLOCK;
  return size < settings_.max_split_bytes && rest > LARGEST_SMALL;
}

// alloc_found_block. The front of a block that is split becomes a new block; the rest keeps its identity.
BlockId Allocator::hand_out(const Request& request, BlockId id, std::int64_t requested) {
  const bool was_split = at(id).is_split();
  if (should_split(at(id), request.size)) {
    Block front = at(id);
    front.size = request.size;
    front.after = id;
    front.has_uses = front.has_capture_uses = false;
    const BlockId front_id = new_block(front);
    if (front.before != NONE) at(front.before).after = front_id;
    Block& rest = at(id);
    rest.before = front_id;
    rest.address += request.size;
    rest.size -= request.size;
    put_free(id);
    if (!rest.expandable)
      raise(&Levels::inactive_split, static_cast<std::int64_t>(was_split ? -request.size : rest.size));
    id = front_id;
  } else if (was_split && !at(id).expandable) {
    levels_.inactive_split -= static_cast<std::int64_t>(at(id).size);
  }
  Block& block = at(id);
  block.allocated = true;
  block.requested = requested;
  raise(&Levels::allocated, static_cast<std::int64_t>(block.size));
  raise(&Levels::active, static_cast<std::int64_t>(block.size));
  raise(&Levels::requested, requested);
  return id;
}

}  // namespace ullage
