#include "replay.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace ullage {
namespace {

bool names_stream(Op op) {
  return op == Op::ALLOCATE || op == Op::RECORD_STREAM || op == Op::HOLD || op == Op::UNHOLD || op == Op::COMPLETE;
}

// Streams in the order of their handles: PyTorch sorts free blocks by the pointer.
class Streams {
 public:
  explicit Streams(const Program& program) {
    std::int64_t last = 0;
    handles_.push_back(0);
    const auto add = [&](std::int64_t handle) {
      if (handle == last) return;  // nearly always
      last = handle;
      if (std::find(handles_.begin(), handles_.end(), handle) == handles_.end()) handles_.push_back(handle);
    };
    for (std::int64_t i = 0; i < program.length; i++)
      if (names_stream(static_cast<Op>(program.op[i]))) add(program.stream[i]);
    for (const auto& route : program.routes)
      for (const std::int64_t handle : route) add(handle);
    for (const std::int64_t handle : program.start.stream) add(handle);
    std::sort(handles_.begin(), handles_.end(), [](std::int64_t a, std::int64_t b) {
      return static_cast<std::uint64_t>(a) < static_cast<std::uint64_t>(b);
    });
    for (std::size_t i = 0; i < handles_.size(); i++) numbers_[handles_[i]] = static_cast<std::int32_t>(i);
  }
  std::int32_t number(std::int64_t handle) {
    if (handle != last_) {
      last_ = handle;
      last_number_ = numbers_.at(handle);
    }
    return last_number_;
  }
  std::int64_t handle(std::int32_t number) const { return handles_[static_cast<std::size_t>(number)]; }
  std::int32_t count() const { return static_cast<std::int32_t>(handles_.size()); }
  std::int32_t first() { return number(0); }

 private:
  std::vector<std::int64_t> handles_;
  std::unordered_map<std::int64_t, std::int32_t> numbers_;
  std::int64_t last_ = -1;
  std::int32_t last_number_ = 0;
};

class Runner {
 public:
  Runner(const Program& program, const Machine& machine, const Wanted& wanted)
      : program_(program),
        wanted_(wanted),
        streams_(program),
        driver_(machine.total_bytes, machine.others_bytes, machine.placement, wanted.calls, program.recorded_addresses,
                !program.start.address.empty()),
        allocator_(program.settings.at(0), machine.version, machine.fraction, streams_.count(), driver_),
        live_(static_cast<std::size_t>(program.ids), NONE) {
    start();
  }

  Replay run() {
    const auto length = static_cast<std::size_t>(program_.length);
    if (wanted_.levels)
      for (auto* column : {&out_.allocated, &out_.reserved, &out_.active, &out_.inactive_split, &out_.requested})
        column->reserve(length);
    if (wanted_.places)
      for (auto* column : {&out_.address, &out_.segment, &out_.offset, &out_.placed_size}) column->reserve(length);
    for (std::int64_t i = 0; i < program_.length; i++) {
      if (i > 0 && i == program_.setup) begin();
      driver_.at_operation(i);
      bool broke = false;
      try {
        carry_out(i);
      } catch (const InternalAssert& error) {
        out_.broken = error.what();
        broke = true;
      }
      note(i);
      out_.done = i + 1;
      const bool enough = wanted_.stop_after_ooms && failures() >= wanted_.stop_after_ooms;
      if (broke || enough) break;
    }
    if (program_.setup > 0 && program_.setup == program_.length) begin();
    finish();
    return std::move(out_);
  }

 private:
  std::int64_t failures() const { return static_cast<std::int64_t>(out_.oom_ops.size() + out_.rejected_ops.size()); }
  BlockId& live(std::int64_t i) { return live_[static_cast<std::size_t>(program_.key[i])]; }

  void start() {
    const Program::Start& start = program_.start;
    std::size_t next = 0;
    for (std::size_t i = 0; i < start.address.size(); i++) {
      std::vector<Allocator::StartBlock> blocks;
      const std::size_t first = next;
      for (std::int64_t n = 0; n < start.blocks_in_segment[i]; n++, next++)
        blocks.push_back({static_cast<Bytes>(start.block_size[next]), start.block_requested[next],
                          start.block_key[next] >= 0, start.block_key[next] != UNMAPPED_KEY});
      const std::vector<BlockId> ids =
          allocator_.start_with({static_cast<Bytes>(start.address[i]), streams_.number(start.stream[i]),
                                 start.is_small[i] != 0, start.is_expandable[i] != 0, start.pool[i]},
                                blocks);
      for (std::size_t n = 0; n < ids.size(); n++)
        if (start.block_key[first + n] >= 0) live_[static_cast<std::size_t>(start.block_key[first + n])] = ids[n];
    }
    begin();
  }

  void begin() {
    allocator_.forget_peak();
    out_.peak = {};
    out_.peak_allocated_op = out_.peak_reserved_op = -1;
    note_peaks(-1);
  }

  void note_peaks(std::int64_t i) {
    const Levels& peak = allocator_.peak();
    if (peak.allocated > out_.peak.allocated) out_.peak.allocated = peak.allocated, out_.peak_allocated_op = i;
    if (peak.reserved > out_.peak.reserved) out_.peak.reserved = peak.reserved, out_.peak_reserved_op = i;
  }

  void carry_out(std::int64_t i) {
    const std::int64_t key = program_.key[i], size = program_.size[i], stream = program_.stream[i];
    placed_ = NONE;
    switch (static_cast<Op>(program_.op[i])) {
      case Op::ALLOCATE: return allocate(i);
      case Op::FREE: {
        if (live(i) == NONE) return out_.skipped_ops.push_back(i);
        const BlockId id = live(i);
        live(i) = NONE;
        return allocator_.free(id);
      }
      case Op::RECORD_STREAM:
        if (live(i) == NONE) return out_.skipped_ops.push_back(i);
        return allocator_.record_stream(live(i), streams_.number(stream));
      case Op::EMPTY_CACHE: return allocator_.empty_cache();
      case Op::SET_FRACTION: {
        double fraction;
        std::memcpy(&fraction, &size, sizeof fraction);
        return allocator_.set_fraction(fraction);
      }
      case Op::SET_SETTINGS: return allocator_.set_settings(program_.settings.at(static_cast<std::size_t>(key) + 1));
      case Op::SET_OTHERS: return driver_.set_others(static_cast<Bytes>(size));
      case Op::FAIL_NEXT: return driver_.fail_next(key);
      case Op::HOLD: return allocator_.hold(streams_.number(stream));
      case Op::UNHOLD: return allocator_.unhold(streams_.number(stream));
      case Op::COMPLETE: return allocator_.complete(streams_.number(stream));
      case Op::SYNCHRONIZE: return allocator_.synchronize();
      case Op::BEGIN_POOL: return allocator_.begin_pool(key, route(size));
      case Op::END_POOL: return allocator_.end_pool(key);
      case Op::RELEASE_POOL: return allocator_.release_pool(key);
      case Op::BEGIN_CAPTURE: return allocator_.begin_capture();
      case Op::END_CAPTURE: return allocator_.end_capture();
      case Op::NOTHING: return;
    }
  }

  void allocate(std::int64_t i) {
    if (program_.size[i] == 0) return;  // the null pointer: not a block
    const BlockId id = allocator_.allocate(static_cast<Bytes>(program_.size[i]), streams_.number(program_.stream[i]));
    live(i) = placed_ = id;
    if (id != NONE) return;
    (allocator_.failure() == Failure::REJECTED ? out_.rejected_ops : out_.oom_ops).push_back(i);
  }

  std::optional<std::vector<std::int32_t>> route(std::int64_t index) {
    if (index < 0) return std::nullopt;
    std::vector<std::int32_t> numbers;
    for (const std::int64_t handle : program_.routes.at(static_cast<std::size_t>(index)))
      numbers.push_back(streams_.number(handle));
    return numbers;
  }

  void note(std::int64_t i) {
    note_peaks(i);
    if (wanted_.levels) {
      const Levels& now = allocator_.levels();
      out_.allocated.push_back(now.allocated);
      out_.reserved.push_back(now.reserved);
      out_.active.push_back(now.active);
      out_.inactive_split.push_back(now.inactive_split);
      out_.requested.push_back(now.requested);
    }
    if (wanted_.places) {
      if (placed_ == NONE) {
        for (auto* column : {&out_.address, &out_.segment, &out_.offset, &out_.placed_size}) column->push_back(-1);
        return;
      }
      const Block& block = allocator_.block(placed_);
      const Segment& segment = allocator_.segment(block);
      out_.address.push_back(static_cast<std::int64_t>(block.address));
      out_.segment.push_back(segment.expandable ? ~segment.range.number : segment.range.number);
      out_.offset.push_back(static_cast<std::int64_t>(block.address - segment.range.address));
      out_.placed_size.push_back(static_cast<std::int64_t>(block.size));
    }
  }

  void finish() {
    out_.now = allocator_.levels();
    out_.peak = allocator_.peak();
    out_.counters = allocator_.counters();
    out_.calls = driver_.log();
    for (int call = 0; call < 8; call++) out_.call_counts[call] = driver_.count(static_cast<Call>(call));
    std::unordered_map<BlockId, std::int64_t> keys;
    for (std::size_t key = 0; key < live_.size(); key++)
      if (live_[key] != NONE) keys[live_[key]] = static_cast<std::int64_t>(key);
    std::unordered_map<std::int32_t, std::int64_t> segments;
    for (const BlockId id : allocator_.all_blocks()) {
      const Block& block = allocator_.block(id);
      const auto [place, is_new] = segments.emplace(block.segment, static_cast<std::int64_t>(segments.size()));
      if (is_new) {
        const Segment& segment = allocator_.segment(block);
        out_.segment_address.push_back(static_cast<std::int64_t>(segment.range.address));
        out_.segment_size.push_back(static_cast<std::int64_t>(segment.size));
        out_.segment_is_expandable.push_back(segment.expandable);
      }
      const State state = !block.mapped                        ? State::UNMAPPED
                          : block.allocated                    ? State::ALLOCATED
                          : block.events > 0 || block.has_uses ? State::WAITING
                                                               : State::FREE;
      out_.block_address.push_back(static_cast<std::int64_t>(block.address));
      out_.block_size.push_back(static_cast<std::int64_t>(block.size));
      out_.block_requested.push_back(block.requested);
      out_.block_state.push_back(static_cast<std::int64_t>(state));
      out_.block_stream.push_back(streams_.handle(block.stream));
      out_.block_key.push_back(keys.count(id) ? keys[id] : -1);
      out_.block_segment.push_back(place->second);
      out_.block_pool.push_back(allocator_.pool(block).owner);
      out_.block_is_small.push_back(allocator_.pool(block).small);
    }
  }

  const Program& program_;
  const Wanted& wanted_;
  Streams streams_;
  Driver driver_;
  Allocator allocator_;
  std::vector<BlockId> live_;
  BlockId placed_ = NONE;
  Replay out_;
};

}  // namespace

Fault survey(const Program& program, std::int64_t settings, std::int64_t routes, std::int64_t& ids) {
  constexpr std::int64_t MOST_KEYS = std::int64_t{1} << 31;
  std::int64_t last = -1;
  for (std::int64_t i = 0; i < program.length; i++) {
    const std::int64_t op = program.op[i], key = program.key[i];
    if (op < 0 || op > static_cast<std::int64_t>(Op::NOTHING)) return Fault::OPERATION;
    switch (static_cast<Op>(op)) {
      case Op::ALLOCATE:
      case Op::FREE:
      case Op::RECORD_STREAM:
        if (key < 0 || key >= MOST_KEYS) return Fault::KEY;
        last = std::max(last, key);
        break;
      case Op::SET_SETTINGS:
        if (key < 0 || key >= settings) return Fault::REFERENCE;
        break;
      case Op::BEGIN_POOL:
        if (program.size[i] >= routes) return Fault::REFERENCE;
        break;
      default: break;
    }
  }
  ids = last + 1;
  return Fault::NONE;
}

Replay replay(const Program& program, const Machine& machine, const Wanted& wanted) {
  return Runner(program, machine, wanted).run();
}

}  // namespace ullage
