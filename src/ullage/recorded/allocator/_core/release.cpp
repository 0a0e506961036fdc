// From a block back to the cache, and from the cache back to the driver (torch 2.8 to 2.15).
#include <algorithm>

#include "allocator.hpp"

namespace ullage {

void Allocator::free(BlockId id) {
  Block& block = at(id);
  block.allocated = false;
  levels_.allocated -= static_cast<std::int64_t>(block.size);
  if (!block.has_uses) return_block(id);
  else if (is_capturing()) deferred_.push_back(id);
  else insert_events(id);
}

// free_block: into the cache, merged with its free neighbours.
void Allocator::return_block(BlockId id) {
  const auto size = static_cast<std::int64_t>(at(id).size);
  const std::int64_t requested = at(id).requested;
  std::int64_t inactive = 0;
  for (const BlockId neighbour : {at(id).before, at(id).after})
    inactive -= static_cast<std::int64_t>(merge(id, neighbour));
  put_free(id);
  const Block& block = at(id);
  if (block.is_split()) inactive += static_cast<std::int64_t>(block.size);
  if (!block.expandable) raise(&Levels::inactive_split, inactive);
  levels_.active -= size;
  lower(&Levels::requested, requested);
}

// try_merge_blocks: the bytes that were added, 0 where the neighbour cannot be taken in.
Bytes Allocator::merge(BlockId into, BlockId neighbour) {
  if (!is_allocatable(neighbour) || at(into).mapped != at(neighbour).mapped) return 0;
  Block& block = at(into);
  const Block taken = at(neighbour);
  if (taken.mapped) take_free(neighbour);
  else pool_at(taken.pool).unmapped[static_cast<std::size_t>(taken.stream)].erase(taken.address);
  if (block.before == neighbour) {
    block.address = taken.address;
    block.before = taken.before;
    if (block.before != NONE) at(block.before).after = into;
  } else {
    block.after = taken.after;
    if (block.after != NONE) at(block.after).before = into;
  }
  block.size += taken.size;
  delete_block(neighbour);
  return taken.size;
}

// release_block: cudaFree of a segment that is free as a whole.
void Allocator::release_segment(BlockId id) {
  const Block block = at(id);
  const std::int64_t owner = pool_at(block.pool).owner;
  if (owner) private_pool(owner).mallocs--;
  take_free(id);
  driver_.release(segment(block).range, block.size);
  levels_.reserved -= static_cast<std::int64_t>(block.size);
  delete_block(id);
}

// release_blocks: whatever of a pool is not split, and the whole pages of expandable segments.
void Allocator::release_pool_blocks(std::int32_t pool) {
  std::vector<BlockId> whole, expandable;
  for (const FreeSet& set : pool_at(pool).free)
    for (auto cursor = set.begin(); cursor != set.end(); cursor = set.next(cursor)) {
      const BlockId id = set[cursor].block;
      if (block(id).expandable) expandable.push_back(id);
      else if (!block(id).is_split()) whole.push_back(id);
    }
  for (const BlockId id : whole) release_segment(id);
  for (const BlockId id : expandable) {
    unmap_block(id);
    if (!at(id).mapped && !at(id).is_split()) release_reservation(id);
  }
}

// release_cached_blocks
void Allocator::release_cached() {
  if (!is_capturing()) {
    synchronize_events();
    release_pool_blocks(LARGE_POOL);
    release_pool_blocks(SMALL_POOL);
  }
  for (std::size_t slot = 0; slot < freeable_.slots();) {
    if (!freeable_.has(slot)) {
      slot++;
      continue;
    }
    const std::int64_t id = freeable_.key(slot);
    release_pool_blocks(private_pool(id).small);
    release_pool_blocks(private_pool(id).large);
    if (private_pool(id).mallocs == 0) {
      private_pools_.erase(id);
      freeable_.erase(slot);
    } else {
      slot++;
    }
  }
}

void Allocator::empty_cache() { release_cached(); }

// release_available_cached_blocks: with max_split_size_mb, oversize blocks of the request's stream are freed first. None
// of them is split, but for what was there before the program or before the setting was lowered: PyTorch would call
// cudaFree in the middle of a segment, and here such blocks are left alone.
bool Allocator::release_available(const Request& request) {
  if (settings_.max_split_bytes == UNLIMITED) return false;
  const Bytes wanted = std::max(request.size, settings_.max_split_bytes);
  FreeSet& set = pool_at(request.pool).free[static_cast<std::size_t>(request.stream)];
  const FreeSet::Cursor found = set.lower_bound(wanted);
  if (found != set.end() && !block(set[found].block).expandable) {
    if (block(set[found].block).is_split()) return false;
    release_segment(set[found].block);
    return true;
  }
  if (set.empty()) return false;
  std::vector<BlockId> chosen;
  Bytes released = 0;
  for (FreeSet::Cursor cursor = found; cursor != set.begin() && released < wanted;) {
    cursor = set.previous(cursor);
    if (set[cursor].size < settings_.max_split_bytes) break;
    if (block(set[cursor].block).expandable || block(set[cursor].block).is_split()) continue;
    released += set[cursor].size;
    chosen.push_back(set[cursor].block);
  }
  for (const BlockId id : chosen) release_segment(id);
  return released >= wanted;
}

// garbage_collect_cached_blocks: the longest unused segments of the default large pool.
void Allocator::collect_garbage() {
  const auto threshold = static_cast<Bytes>(settings_.garbage_collection_threshold * static_cast<double>(allowed_));
  if (static_cast<Bytes>(levels_.reserved) <= threshold) return;
  const Bytes target = static_cast<Bytes>(levels_.reserved) - threshold;
  Pool& pool = pool_at(1);
  std::vector<BlockId> candidates;
  double age_sum = 0;
  const auto age = [&](BlockId id) { return static_cast<double>(pool.lookups - block(id).lookups_then); };
  for (const FreeSet& set : pool.free)
    for (auto cursor = set.begin(); cursor != set.end(); cursor = set.next(cursor))
      if (!block(set[cursor].block).is_split()) {
        candidates.push_back(set[cursor].block);
        age_sum += age(set[cursor].block);
      }
  Bytes reclaimed = 0;
  auto left = static_cast<double>(candidates.size());
  for (bool any = true; reclaimed < target && any && left > 0;) {
    const double least = age_sum / left;
    any = false;
    std::vector<BlockId> younger;
    for (const BlockId id : candidates) {
      if (block(id).expandable || age(id) < least) {
        younger.push_back(id);
        continue;
      }
      any = true;
      reclaimed += block(id).size;
      age_sum -= age(id);
      left--;
      release_segment(id);
    }
    candidates = younger;
  }
}

}  // namespace ullage
