// Expandable segments: address space that is reserved once, and pages that come and go (torch 2.8 to 2.15).
#include <algorithm>

#include "allocator.hpp"

namespace ullage {

// find_expandable_block: the lowest address with space for the request, free pages before it counted; else a new
// reservation. NONE where the request is larger than a reservation.
BlockId Allocator::find_address_space(const Request& request) {
  Pool& pool = pool_at(request.pool);
  auto& unmapped = pool.unmapped[static_cast<std::size_t>(request.stream)];
  for (const auto& [address, id] : unmapped) {
    const BlockId start = is_allocatable(block(id).before) ? block(id).before : id;
    Bytes room = 0;
    for (BlockId next = start; room < request.size && is_allocatable(next); next = block(next).after)
      room += block(next).size;
    if (room >= request.size) return start;
  }
  const Bytes page = pool.small ? SMALL_SEGMENT : settings_.large_segment_bytes;
  const Bytes most = driver_.total() + driver_.total() / 8;
  const Bytes wanted = settings_.reserve_bytes ? std::min(settings_.reserve_bytes, most) : most;
  const Bytes size = (wanted + page - 1) / page * page;
  const Range range = driver_.reserve(size);
  if (size < request.size) {
    driver_.unreserve(range, size);
    return NONE;
  }
  add_segment({range, size, page, true});
  Block made;
  made.address = range.address;
  made.size = size;
  made.stream = request.stream;
  made.pool = request.pool;
  made.segment = static_cast<std::int32_t>(segments_.size() - 1);
  made.mapped = false;
  made.expandable = true;
  const BlockId id = new_block(made);
  unmapped.emplace(made.address, id);
  return id;
}

// try_allocate_expandable_block. What was mapped before a later page failed stays mapped, and cached.
BlockId Allocator::take_pages(const Request& request) {
  BlockId id = find_address_space(request);
  if (id == NONE) return NONE;
  if (!at(id).mapped && !map_block(id, std::min(at(id).size, request.size))) return NONE;
  while (at(id).size < request.size) {
    const BlockId next = at(id).after;
    if (!map_block(next, std::min(request.size - at(id).size, at(next).size))) return NONE;
    id = next;
  }
  take_free(id);
  return id;
}

bool Allocator::map_block(BlockId id, Bytes size) {
  const Segment& segment = this->segment(at(id));
  const Bytes offset = at(id).address - segment.range.address;
  const Bytes pages = (offset + size + segment.page - 1) / segment.page - offset / segment.page;
  if (!driver_.map(segment.range, offset, segment.page, pages)) return false;
  const Bytes mapped = pages * segment.page;
  auto& unmapped = pool_at(at(id).pool).unmapped[static_cast<std::size_t>(at(id).stream)];
  unmapped.erase(at(id).address);
  at(id).mapped = true;
  if (mapped < at(id).size) {
    Block rest = at(id);
    rest.mapped = false;
    rest.has_uses = rest.has_capture_uses = false;
    rest.address += mapped;
    rest.size -= mapped;
    rest.before = id;
    const BlockId rest_id = new_block(rest);
    if (rest.after != NONE) at(rest.after).before = rest_id;
    at(id).after = rest_id;
    at(id).size = mapped;
    unmapped.emplace(rest.address, rest_id);
  }
  for (const BlockId neighbour : {at(id).before, at(id).after}) merge(id, neighbour);
  put_free(id);
  raise(&Levels::reserved, static_cast<std::int64_t>(mapped));
  return true;
}

// unmap_block: the whole pages inside a free block.
void Allocator::unmap_block(BlockId id) {
  const Block whole = at(id);
  const Segment& segment = this->segment(whole);
  const Bytes start = whole.address - segment.range.address;
  const Bytes first = (start + segment.page - 1) / segment.page, last = (start + whole.size) / segment.page;
  if (first >= last) return;
  complete(whole.stream);  // cudaStreamSynchronize of the stream that allocated it
  driver_.unmap(segment.range, first * segment.page, segment.page, last - first);
  take_free(id);
  Block& block = at(id);
  block.address = segment.range.address + first * segment.page;
  block.size = (last - first) * segment.page;
  block.mapped = false;
  const Bytes in_front = block.address - whole.address, behind = whole.size - in_front - block.size;
  const auto keep = [&](Bytes address, Bytes size, BlockId before, BlockId after) {
    Block part = whole;
    part.address = address;
    part.size = size;
    part.before = before;
    part.after = after;
    part.has_uses = part.has_capture_uses = false;
    const BlockId part_id = new_block(part);
    if (before != NONE) at(before).after = part_id;
    if (after != NONE) at(after).before = part_id;
    put_free(part_id);
  };
  if (in_front) keep(whole.address, in_front, whole.before, id);
  if (behind) keep(whole.address + whole.size - behind, behind, id, whole.after);
  const Bytes unmapped_size = (last - first) * segment.page;
  for (const BlockId neighbour : {at(id).before, at(id).after}) merge(id, neighbour);
  pool_at(whole.pool).unmapped[static_cast<std::size_t>(whole.stream)].emplace(at(id).address, id);
  levels_.reserved -= static_cast<std::int64_t>(unmapped_size);
  const std::int64_t owner = pool_at(whole.pool).owner;
  // PyTorch counts a private pool's mappings by allocation and its unmappings by range, so it may count below nothing.
  if (owner && private_pool(owner).mallocs-- <= 0)
    throw InternalAssert("block->pool->owner_PrivatePool->cudaMalloc_count > 0");
}

// release_expandable_segment: nothing of a reservation is mapped any more.
void Allocator::release_reservation(BlockId id) {
  const Block block = at(id);
  driver_.unreserve(segment(block).range, block.size);
  pool_at(block.pool).unmapped[static_cast<std::size_t>(block.stream)].erase(block.address);
  delete_block(id);
}

}  // namespace ullage
