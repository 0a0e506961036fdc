// Blocks that other streams still use: they come back when the events recorded at their free have completed.
#include <algorithm>

#include "allocator.hpp"

namespace ullage {

void Allocator::record_stream(BlockId id, std::int32_t stream) {
  Block& block = at(id);
  if (block.stream == stream) return;
  const auto add = [&](std::vector<std::int32_t>& uses) {
    if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  };
  block.has_uses = true;
  add(uses_[id]);
  if (is_capturing()) {
    block.has_capture_uses = true;
    add(capture_uses_[id]);
  }
}

void Allocator::insert_events(BlockId id) {
  std::vector<std::int32_t> streams = std::move(uses_[id]);
  uses_.erase(id);
  at(id).has_uses = false;
  for (const std::int32_t stream : streams) {
    EventQueue& queue = queues_[static_cast<std::size_t>(stream)];
    queue.waiting.emplace_back(++queue.recorded, id);
    at(id).events++;
    waiting_++;
  }
}

// insert_events_deferred_until_no_capture: uses that were recorded inside the capture are the graph's own affair.
void Allocator::insert_deferred() {
  const std::vector<BlockId> deferred = std::move(deferred_);
  deferred_.clear();
  for (const BlockId id : deferred) {
    if (at(id).has_capture_uses) {
      const std::vector<std::int32_t>& captured = capture_uses_[id];
      const auto is_captured = [&](std::int32_t stream) {
        return std::find(captured.begin(), captured.end(), stream) != captured.end();
      };
      std::vector<std::int32_t>& uses = uses_[id];
      uses.erase(std::remove_if(uses.begin(), uses.end(), is_captured), uses.end());
      capture_uses_.erase(id);
      at(id).has_capture_uses = false;
    }
    insert_events(id);
    if (at(id).events == 0) return_block(id);
  }
}

bool Allocator::event_done(BlockId id) {
  waiting_--;
  return --at(id).events == 0;
}

void Allocator::process_events() {
  if (!deferred_.empty()) insert_deferred();
  if (waiting_ == 0) return;
  for (EventQueue& queue : queues_) {
    while (!queue.waiting.empty()) {
      const std::uint64_t number = queue.waiting.front().first;
      const BlockId id = queue.waiting.front().second;
      if (queue.held && number > queue.completed) break;
      queue.waiting.pop_front();
      if (event_done(id)) return_block(id);
    }
  }
}

void Allocator::synchronize_events() {
  counters_.synchronizations++;
  if (!deferred_.empty()) insert_deferred();
  for (EventQueue& queue : queues_) {
    while (!queue.waiting.empty()) {
      const BlockId id = queue.waiting.front().second;
      queue.waiting.pop_front();
      if (event_done(id)) return_block(id);
    }
  }
}

void Allocator::hold(std::int32_t stream) {
  EventQueue& queue = queues_[static_cast<std::size_t>(stream)];
  queue.held = true;
  queue.completed = queue.recorded;
}

void Allocator::unhold(std::int32_t stream) {
  complete(stream);
  queues_[static_cast<std::size_t>(stream)].held = false;
}

void Allocator::complete(std::int32_t stream) {
  EventQueue& queue = queues_[static_cast<std::size_t>(stream)];
  queue.completed = queue.recorded;
}

void Allocator::synchronize() {
  for (EventQueue& queue : queues_) queue.completed = queue.recorded;
}

}  // namespace ullage
