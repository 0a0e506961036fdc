// PyTorch's CUDACachingAllocator of one device, as a model that is equal to it byte for byte: the address of every block,
// the driver's calls in their order, the statistics, and when memory runs out. It follows the behaviour of torch 2.8 to
// 2.15 (c10/cuda/CUDACachingAllocator.cpp); docs/allocator.md says where each rule was seen. It knows no Python.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block.hpp"
#include "pool_table.hpp"
#include "versions.hpp"

namespace ullage {

// Bytes now; what torch.cuda.memory_stats() calls <name>.all.current.
struct Levels {
  std::int64_t allocated = 0, reserved = 0, active = 0, inactive_split = 0, requested = 0;
};

struct Counters {
  std::int64_t retries = 0, ooms = 0, rejections = 0, synchronizations = 0;
  // Equally large free blocks of several segments, of which an address decided that was made up and not recorded.
  std::int64_t address_ties = 0;
};

// PyTorch's own assertion failed: what follows in a real process is undefined.
struct InternalAssert : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The two pools that every process has; private pools come behind them.
inline constexpr std::int32_t SMALL_POOL = 0, LARGE_POOL = 1;

enum class Failure { NONE, OUT_OF_MEMORY, REJECTED };

class Allocator {
 public:
  Allocator(const Settings& settings, Version version, double fraction, std::int32_t streams, Driver& driver);

  // What is there before the program begins: a segment, and its blocks from the first to the last. Returns their
  // ids; NONE of one that is free behind a free one.
  struct StartSegment {
    Bytes address;
    std::int32_t stream;
    bool small, expandable;
    std::int64_t pool;  // 0: the default pool
  };
  struct StartBlock {
    Bytes size;
    std::int64_t requested;
    bool allocated;
    bool mapped;  // false: addresses of an expandable segment whose pages were unmapped
  };
  std::vector<BlockId> start_with(const StartSegment& start, const std::vector<StartBlock>& blocks);

  // A block for `size` bytes; NONE if memory ran out, and `failure()` says how.
  BlockId allocate(Bytes size, std::int32_t stream);
  void free(BlockId block);
  void record_stream(BlockId block, std::int32_t stream);
  void empty_cache();
  void set_fraction(double fraction);
  void set_settings(const Settings& settings) { settings_ = settings; }

  // Streams whose events do not complete, as long as a stream is held.
  void hold(std::int32_t stream);
  void unhold(std::int32_t stream);
  void complete(std::int32_t stream);
  void synchronize();

  void begin_pool(std::int64_t pool, std::optional<std::vector<std::int32_t>> streams);
  void end_pool(std::int64_t pool);
  void release_pool(std::int64_t pool);
  void begin_capture() { captures_++; }
  void end_capture() { captures_--; }

  const Levels& levels() const { return levels_; }
  // The highest that each has been, within an operation too: what is mapped for a request may be unmapped for it.
  const Levels& peak() const { return peak_; }
  void forget_peak() { peak_ = levels_; }
  const Counters& counters() const { return counters_; }
  Failure failure() const { return failure_; }
  const Block& block(BlockId id) const { return blocks_[static_cast<std::size_t>(id)]; }
  const Segment& segment(const Block& block) const { return segments_[static_cast<std::size_t>(block.segment)]; }
  const Pool& pool(const Block& block) const { return pools_[static_cast<std::size_t>(block.pool)]; }
  // Every block that is there, allocated or free or unmapped.
  std::vector<BlockId> all_blocks() const;

 private:
  struct Request {
    Bytes size, segment_size;
    std::int32_t stream, pool;
  };
  struct Route {
    std::int64_t pool;
    std::optional<std::vector<std::int32_t>> streams;
  };
  struct PrivatePool {
    std::int32_t small, large;
    std::int64_t users = 0, mallocs = 0;
  };
  struct EventQueue {
    std::deque<std::pair<std::uint64_t, BlockId>> waiting;
    std::uint64_t recorded = 0, completed = 0;
    bool held = false;
  };

  Block& at(BlockId id) { return blocks_[static_cast<std::size_t>(id)]; }
  Pool& pool_at(std::int32_t pool) { return pools_[static_cast<std::size_t>(pool)]; }
  // PyTorch destroys a pool when it has counted to nothing; with expandable segments it may count what is still there.
  PrivatePool& private_pool(std::int64_t id) {
    const auto found = private_pools_.find(id);
    if (found == private_pools_.end()) throw InternalAssert("a block of a private pool that was destroyed");
    return found->second;
  }
  PrivatePool& make_private_pool(std::int64_t id);
  FreeSet& free_of(const Block& block) { return pool_at(block.pool).free[static_cast<std::size_t>(block.stream)]; }
  FreeEntry entry_of(BlockId id) const {
    const Block& block = this->block(id);
    const auto segment = static_cast<std::uint64_t>(block.segment);
    const auto tie = version_.older_segment_wins_ties() ? segment : version_.earlier_block_wins_ties() ? block.made : 0;
    return {block.size, tie, block.address, id};
  }
  void add_segment(const Segment& segment) {
    segments_.push_back(segment);
    has_made_up_address_ |= !segment.range.is_told;
  }
  BlockId new_block(const Block& block) {
    auto id = static_cast<BlockId>(blocks_.size());
    if (unused_.empty()) {
      blocks_.push_back(block);
    } else {
      id = unused_.back();
      unused_.pop_back();
      at(id) = block;
    }
    at(id).made = made_++;
    return id;
  }
  void delete_block(BlockId id) {
    if (at(id).has_uses) uses_.erase(id);
    if (at(id).has_capture_uses) capture_uses_.erase(id);
    at(id) = Block{};
    unused_.push_back(id);
  }
  void settle(BlockId id, const StartBlock& start);
  void put_free(BlockId id) {
    Block& block = at(id);
    block.lookups_then = pool_at(block.pool).lookups;
    free_of(block).insert(entry_of(id));
  }
  void take_free(BlockId id) { free_of(at(id)).erase(entry_of(id)); }
  bool is_allocatable(BlockId id) const {
    return id != NONE && !block(id).allocated && block(id).events == 0 && !block(id).has_uses;
  }
  bool is_capturing() const { return version_.route_counts_as_capture() ? !routes_.empty() : captures_ > 0; }
  bool collects_garbage() const { return is_limited_ && settings_.garbage_collection_threshold > 0; }
  bool is_over_limit(Bytes size) const { return is_limited_ && static_cast<Bytes>(levels_.reserved) + size > allowed_; }

  void raise(std::int64_t Levels::* level, std::int64_t by) {
    // Sizes that wrap, which PyTorch lets through, may add up to more than the type holds.
    levels_.*level = static_cast<std::int64_t>(static_cast<Bytes>(levels_.*level) + static_cast<Bytes>(by));
    if (levels_.*level > peak_.*level) peak_.*level = levels_.*level;
  }
  void lower(std::int64_t Levels::* level, std::int64_t by) {
    levels_.*level = static_cast<std::int64_t>(static_cast<Bytes>(levels_.*level) - static_cast<Bytes>(by));
  }

  // allocate.cpp: from a request to a block
  std::int32_t pool_for(Bytes size, std::int32_t stream) const;
  BlockId find_free(const Request& request);
  void note_tie(const FreeSet& set, FreeSet::Cursor chosen);
  BlockId take_segment(const Request& request, bool is_retry);
  BlockId hand_out(const Request& request, BlockId id, std::int64_t requested);
  bool should_split(const Block& block, Bytes size) const;

  // release.cpp: from a block back to the driver
  void return_block(BlockId id);
  Bytes merge(BlockId into, BlockId neighbour);
  void release_segment(BlockId id);
  void release_pool_blocks(std::int32_t pool);
  void release_cached();
  bool release_available(const Request& request);
  void collect_garbage();

  // expandable.cpp: segments that grow by pages
  BlockId take_pages(const Request& request);
  BlockId find_address_space(const Request& request);
  bool map_block(BlockId id, Bytes size);
  void unmap_block(BlockId id);
  void release_reservation(BlockId id);

  // streams.cpp: blocks that other streams still use
  void insert_events(BlockId id);
  void insert_deferred();
  void process_events();
  void synchronize_events();
  bool event_done(BlockId id);

  Settings settings_;
  Version version_;
  Driver& driver_;
  std::int32_t streams_;
  bool is_limited_ = false;  // by a fraction below 1
  Bytes allowed_ = UNLIMITED;
  int captures_ = 0;
  Failure failure_ = Failure::NONE;

  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  std::uint64_t made_ = 0;
  std::vector<Segment> segments_;
  bool has_made_up_address_ = false;  // of any segment so far
  std::vector<Pool> pools_;
  std::map<std::int64_t, PrivatePool> private_pools_;
  PoolTable freeable_;
  std::vector<Route> routes_;  // the last one that matches wins

  std::vector<EventQueue> queues_;
  std::vector<BlockId> deferred_;  // freed during a capture, with uses on other streams
  std::unordered_map<BlockId, std::vector<std::int32_t>> uses_, capture_uses_;
  std::int64_t waiting_ = 0;  // events in all queues

  Levels levels_, peak_;
  Counters counters_;
};

}  // namespace ullage
