// The private pools that are no longer used, in the order in which PyTorch releases them: that of its hash table
// (c10/util/flat_hash_map.h: Robin Hood hashing, Fibonacci multiplication, at most half full). Only the order matters here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace ullage {

class PoolTable {
 public:
  void insert(std::int64_t key) {
    for (;;) {
      if (slots_.empty() || 2 * (count_ + 1) > buckets_) {
        grow();
        continue;
      }
      std::size_t at = home(key);
      int distance = 0;
      while (slots_[at].distance >= distance) {
        if (slots_[at].key == key) return;
        at++, distance++;
      }
      if (distance < most_ && place(key, at, distance)) return;
      grow();
    }
  }

  // The slots in order; a slot may be empty.
  std::size_t slots() const { return slots_.size(); }
  bool has(std::size_t slot) const { return slots_[slot].distance >= 0; }
  std::int64_t key(std::size_t slot) const { return slots_[slot].key; }

  // Take a key out; those behind it move up, so the same slot may hold the next one.
  void erase(std::size_t slot) {
    slots_[slot].distance = -1;
    count_--;
    for (std::size_t next = slot + 1; next < slots_.size() && slots_[next].distance > 0; next++, slot++) {
      slots_[slot] = {slots_[next].key, slots_[next].distance - 1};
      slots_[next].distance = -1;
    }
  }

 private:
  struct Slot {
    std::int64_t key = 0;
    int distance = -1;  // from where the key would like to be; -1: empty
  };

  std::size_t home(std::int64_t key) const {
    return (11400714819323198485ULL * static_cast<std::uint64_t>(key)) >> shift_;
  }

  // Put a key where a richer one sits, which moves on; false where one would end up too far from its home.
  bool place(std::int64_t key, std::size_t at, int distance) {
    const std::vector<Slot> before = slots_;
    Slot moving{key, distance};
    for (;; at++, moving.distance++) {
      if (slots_[at].distance < 0) {
        slots_[at] = moving;
        count_++;
        return true;
      }
      if (slots_[at].distance < moving.distance) std::swap(slots_[at], moving);
      else if (moving.distance + 1 == most_) break;
    }
    slots_ = before;
    return false;
  }

  void grow() {
    std::vector<std::int64_t> keys;
    for (const Slot& slot : slots_)
      if (slot.distance >= 0) keys.push_back(slot.key);
    buckets_ = std::max<std::size_t>(4, 2 * buckets_);
    int log = 0;
    while ((std::size_t{1} << log) < buckets_) log++;
    shift_ = 64 - log;
    most_ = std::max(4, log);
    slots_.assign(buckets_ + static_cast<std::size_t>(most_) + 1, Slot{});
    count_ = 0;
    for (const std::int64_t key : keys) insert(key);
  }

  std::vector<Slot> slots_;
  std::size_t buckets_ = 0, count_ = 0;
  int shift_ = 63, most_ = 4;
};

}  // namespace ullage
