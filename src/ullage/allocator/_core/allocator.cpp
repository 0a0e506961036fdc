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
  is_limited_ = fraction < 1;
  allowed_ = is_limited_ ? static_cast<Bytes>(fraction * static_cast<double>(driver_.total())) : UNLIMITED;
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

std::vector<BlockId> Allocator::start_with(Bytes address, std::int32_t stream, bool small, bool expandable,
                                           const std::vector<StartBlock>& blocks) {
  Bytes mapped = 0;
  for (const StartBlock& block : blocks) mapped += block.size;
  // It may have been mapped by pages of another size, under other settings.
  const bool by_small_pages = small || mapped % settings_.large_segment_bytes != 0;
  const Bytes page = by_small_pages ? SMALL_SEGMENT : settings_.large_segment_bytes;
  const Bytes wanted = std::max(mapped, driver_.total() + driver_.total() / 8);
  Segment segment;
  segment.expandable = expandable;
  segment.page = expandable ? page : 0;
  segment.size = expandable ? (wanted + page - 1) / page * page : mapped;
  segment.range =
      expandable ? driver_.found_reservation(address, segment.size, mapped) : driver_.found(address, mapped);
  add_segment(segment);
  raise(&Levels::reserved, static_cast<std::int64_t>(mapped));

  Block next;
  next.address = address;
  next.stream = stream;
  next.pool = small ? SMALL_POOL : LARGE_POOL;
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
  std::vector<BlockId> ids;
  for (std::size_t i = 0; i < blocks.size(); i++) {
    const bool goes_on =
        i > 0 && !blocks[i].allocated && !blocks[i - 1].allocated;  // what is free side by side is one block
    if (goes_on) at(next.before).size += blocks[i].size, next.address += blocks[i].size;
    ids.push_back(goes_on ? NONE : add(blocks[i].size));
  }
  if (segment.size > mapped) {
    next.mapped = false;
    const BlockId rest = add(segment.size - mapped);
    pool_at(next.pool).unmapped[static_cast<std::size_t>(stream)].emplace(at(rest).address, rest);
  }
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

void Allocator::begin_pool(std::int64_t id, std::optional<std::vector<std::int32_t>> streams) {
  auto found = private_pools_.find(id);
  if (found == private_pools_.end()) {
    PrivatePool made{static_cast<std::int32_t>(pools_.size()), static_cast<std::int32_t>(pools_.size() + 1)};
    for (const bool small : {true, false}) {
      Pool& pool = pools_.emplace_back();
      pool.small = small;
      pool.owner = id;
      pool.free.resize(static_cast<std::size_t>(streams_));
      pool.unmapped.resize(static_cast<std::size_t>(streams_));
    }
    found = private_pools_.emplace(id, made).first;
  } else if (found->second.users <= 0) {
    throw InternalAssert("it->second->use_count > 0");
  }
  found->second.users += 2;  // createOrIncrefPool, and beginAllocateToPool, which does the same
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
