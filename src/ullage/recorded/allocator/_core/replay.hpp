// Run a program of allocator operations: columns in, columns out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator.hpp"

namespace ullage {

// The operations of a program; ullage/recorded/program.py has the same table.
enum class Op : std::int64_t {
  ALLOCATE,       // key: id, size: bytes, stream
  FREE,           // key: id
  RECORD_STREAM,  // key: id, stream
  EMPTY_CACHE,
  SET_FRACTION,  // size: the bits of a double
  SET_SETTINGS,  // key: index of `settings` after the first
  SET_OTHERS,    // size: bytes that others hold
  FAIL_NEXT,     // key: how many driver allocations fail
  HOLD,          // stream
  UNHOLD,        // stream
  COMPLETE,      // stream
  SYNCHRONIZE,
  BEGIN_POOL,    // key: pool, size: index of `routes`, -1: every stream
  END_POOL,      // key: pool
  RELEASE_POOL,  // key: pool
  BEGIN_CAPTURE,
  END_CAPTURE,
  NOTHING,
};

// Stands for the key of a stretch of an expandable segment that no memory is mapped to.
constexpr std::int64_t UNMAPPED_KEY = -2;

struct Program {
  const std::int64_t *op, *key, *size, *stream;
  std::int64_t length;
  std::int64_t ids;  // every key of a block is below
  std::vector<std::vector<std::int64_t>> routes;
  std::vector<Settings> settings;  // the first is in force at the start
  // What is there before: a segment is blocks_in_segment blocks, one behind the other, from its address on.
  struct Start {
    std::vector<std::int64_t> address, stream, is_small, is_expandable, pool, blocks_in_segment;
    std::vector<std::int64_t> block_size, block_requested, block_key;  // key -1: free, UNMAPPED_KEY: not mapped
  } start;
  std::vector<Bytes> recorded_addresses;
  std::int64_t setup = 0;  // first operations, which bring about the state at the beginning: peaks count after them
};

struct Machine {
  Bytes total_bytes, others_bytes;
  Placement placement;
  Version version;
  double fraction;
};

// What a replay records in addition to its totals.
struct Wanted {
  bool levels, places, calls;
  std::int64_t stop_after_ooms;  // 0: never
};

struct Replay {
  // One entry an operation, where wanted.
  std::vector<std::int64_t> allocated, reserved, active, inactive_split, requested;
  // Of ALLOCATE, -1 without a block; segments: ~n reserved; placed_size: bytes after rounding.
  std::vector<std::int64_t> address, segment, offset, placed_size;
  std::vector<std::int64_t> oom_ops, rejected_ops, skipped_ops;
  std::vector<CallRecord> calls;
  std::int64_t done = 0;  // operations that were run
  Levels now, peak;
  std::int64_t peak_reserved_op = -1, peak_allocated_op = -1;
  Counters counters;
  std::int64_t call_counts[8] = {};
  std::string broken;  // PyTorch's own assertion that failed at the last operation
  // The blocks that are there at the end, by address: columns of equal length.
  std::vector<std::int64_t> block_address, block_size, block_requested, block_state, block_stream, block_key;
  std::vector<std::int64_t> block_segment, block_pool, block_is_small;
  std::vector<std::int64_t> segment_address, segment_size, segment_is_expandable;
};

enum class State : std::int64_t { FREE = 0, WAITING = 1, ALLOCATED = 2, UNMAPPED = 3 };

// What is wrong with a program, if anything.
enum class Fault : std::int64_t { NONE, OPERATION, KEY, REFERENCE };

// Look through a program's columns before it runs: its length, op, key and size are read, and how many settings and
// routes it may name. `ids` becomes what every key of a block is below.
Fault survey(const Program& program, std::int64_t settings, std::int64_t routes, std::int64_t& ids);

Replay replay(const Program& program, const Machine& machine, const Wanted& wanted);

}  // namespace ullage
