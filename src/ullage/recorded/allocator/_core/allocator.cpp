#include "allocator.hpp"

#include <algorithm>

namespace ullage {

Allocator::Allocator(const Settings& settings, Version version, double fraction, std::int32_t streams, Driver& driver)
    : settings_(settings),
      version_(version),
      driver_(driver),
      streams_(streams),
      queues_(static_cast<std::size_t>(streams)) {
  set_fraction(fraction);
  for (const bool small : {true, false}) {
    Pool& pool = pools_.emplace_back();
    pool.small = small;
    pool.free.resize(static_cast<std::size_t>(streams));
    pool.unmapped.resize(static_cast<std::size_t>(streams));
  }
}

void Allocator::set_fraction(double fraction) {
  is_limited_ = !(fraction >= 1);
  const double part = fraction > 0 ? fraction : 0;  // a value that is not a fraction leaves nothing
  allowed_ = is_limited_ ? static_cast<Bytes>(part * static_cast<double>(driver_.total())) : UNLIMITED;
}

// ---- blocks

std::vector<BlockId> Allocator::all_blocks() const {
  std::vector<BlockId> found;
  for (std::size_t id = 0; id < blocks_.size(); id++)
    if (blocks_[id].size > 0) found.push_back(static_cast<BlockId>(id));
  std::sort(found.begin(), found.end(), [&](BlockId a, BlockId b) { return block(a).address < block(b).address; });
  return found;
}

// ---- what was there before

std::vector<BlockId> Allocator::start_with(const StartSegment& start, const std::vector<StartBlock>& blocks) {
  const auto [address, stream, small, expandable, pool] = start;
  Bytes mapped = 0, extent = 0;
  for (const StartBlock& block : blocks) {
    extent += block.size;
    if (block.mapped) mapped += block.size;
  }
  // It may have been mapped by pages of another size, under other settings.
  const bool by_small_pages = small || mapped % settings_.large_segment_bytes != 0;
  const Bytes page = by_small_pages ? SMALL_SEGMENT : settings_.large_segment_bytes;
  const Bytes wanted = std::max(extent, driver_.total() + driver_.total() / 8);
  Segment segment;
  segment.expandable = expandable;
  segment.page = expandable ? page : 0;
  segment.size = expandable ? (wanted + page - 1) / page * page : extent;
  segment.range =
      expandable ? driver_.found_reservation(address, segment.size, mapped) : driver_.found(address, mapped);
  add_segment(segment);
  raise(&Levels::reserved, static_cast<std::int64_t>(mapped));

  Block next;
  next.address = address;
  next.stream = stream;
  next.pool = small ? SMALL_POOL : LARGE_POOL;
  if (pool) {
    const auto known = private_pools_.find(pool);
    PrivatePool& its = known == private_pools_.end() ? make_private_pool(pool) : known->second;
    if (!its.users) its.users = 1;  // whoever made it has it still
    its.mallocs += static_cast<std::int64_t>(expandable ? blocks.size() : 1);
    next.pool = small ? its.small : its.large;
  }
  next.segment = static_cast<std::int32_t>(segments_.size() - 1);
  next.expandable = expandable;
  const auto add = [&](Bytes size) {
    next.size = size;
    const BlockId id = new_block(next);
    if (next.before != NONE) at(next.before).after = id;
    next.before = id;
    next.address += size;
    return id;
  };
  const auto add_unmapped = [&](Bytes size) {
    next.mapped = false;
    const BlockId id = add(size);
    next.mapped = true;
    pool_at(next.pool).unmapped[static_cast<std::size_t>(next.stream)].emplace(at(id).address, id);
    return id;
  };
  std::vector<BlockId> ids;
  for (std::size_t i = 0; i < blocks.size(); i++) {
    // What is free side by side is one block.
    const bool goes_on =
        i > 0 && blocks[i].mapped && !blocks[i].allocated && blocks[i - 1].mapped && !blocks[i - 1].allocated;
    if (!blocks[i].mapped) {
      add_unmapped(blocks[i].size);
      ids.push_back(NONE);
      continue;
    }
    if (goes_on) at(next.before).size += blocks[i].size, next.address += blocks[i].size;
    ids.push_back(goes_on ? NONE : add(blocks[i].size));
  }
  if (segment.size > extent) add_unmapped(segment.size - extent);
  for (std::size_t i = 0; i < blocks.size(); i++)
    if (ids[i] != NONE) settle(ids[i], blocks[i]);
  return ids;
}

void Allocator::settle(BlockId id, const StartBlock& start) {
  Block& block = at(id);
  block.requested = start.requested;
  block.allocated = start.allocated;
  if (!block.allocated) {
    put_free(id);
    if (!block.expandable && block.is_split()) raise(&Levels::inactive_split, static_cast<std::int64_t>(block.size));
    return;
  }
  raise(&Levels::allocated, static_cast<std::int64_t>(block.size));
  raise(&Levels::active, static_cast<std::int64_t>(block.size));
  raise(&Levels::requested, block.requested);
}

// ---- private pools

Allocator::PrivatePool& Allocator::make_private_pool(std::int64_t id) {
  const PrivatePool made{static_cast<std::int32_t>(pools_.size()), static_cast<std::int32_t>(pools_.size() + 1)};
  for (const bool small : {true, false}) {
    Pool& pool = pools_.emplace_back();
    pool.small = small;
    pool.owner = id;
    pool.free.resize(static_cast<std::size_t>(streams_));
    pool.unmapped.resize(static_cast<std::size_t>(streams_));
  }
  return private_pools_.emplace(id, made).first->second;
}

void Allocator::begin_pool(std::int64_t id, std::optional<std::vector<std::int32_t>> streams) {
  const auto found = private_pools_.find(id);
  PrivatePool& pool = found == private_pools_.end() ? make_private_pool(id) : found->second;
  if (found != private_pools_.end() && pool.users <= 0) throw InternalAssert("it->second->use_count > 0");
  pool.users += 2;  // createOrIncrefPool, and beginAllocateToPool, which does the same
  routes_.push_back({id, std::move(streams)});
}

void Allocator::end_pool(std::int64_t id) {
  const auto found = std::find_if(routes_.begin(), routes_.end(), [&](const Route& route) { return route.pool == id; });
  if (found != routes_.end()) routes_.erase(found);
}

void Allocator::release_pool(std::int64_t id) {
  const auto found = private_pools_.find(id);
  if (found == private_pools_.end()) return;
  if (--found->second.users < 0) throw InternalAssert("uc >= 0");
  if (found->second.users == 0) freeable_.insert(id);
}

}  // namespace ullage
