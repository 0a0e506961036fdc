// The free blocks of one pool and stream, in the allocator's order: by size, then by the version's tie-break, then by
// address. Sorted runs of at most 128 entries: nearly all blocks fit into one run, and moving a run's tail in memory is
// faster than the nodes of a tree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "settings.hpp"

namespace ullage {

struct FreeEntry {
  Bytes size;
  std::uint64_t tie;  // 2.15: which segment came first; 2.11: always 0
  Bytes address;
  std::int32_t block;

  bool operator<(const FreeEntry& other) const {
    if (size != other.size) return size < other.size;
    if (tie != other.tie) return tie < other.tie;
    return address < other.address;
  }
};

class FreeSet {
 public:
  struct Cursor {
    std::size_t run, at;
    bool operator==(const Cursor& other) const { return run == other.run && at == other.at; }
    bool operator!=(const Cursor& other) const { return !(*this == other); }
  };

  Cursor begin() const { return {0, 0}; }
  Cursor end() const { return {runs_.size(), 0}; }
  bool empty() const { return runs_.empty(); }
  const FreeEntry& operator[](Cursor cursor) const { return runs_[cursor.run][cursor.at]; }

  Cursor next(Cursor cursor) const {
    if (++cursor.at < runs_[cursor.run].size()) return cursor;
    return {cursor.run + 1, 0};
  }
  Cursor previous(Cursor cursor) const {
    if (cursor.at > 0) return {cursor.run, cursor.at - 1};
    return {cursor.run - 1, runs_[cursor.run - 1].size() - 1};
  }

  // The first block of at least this size.
  Cursor lower_bound(Bytes size) const { return find({size, 0, 0, 0}); }

  void insert(const FreeEntry& entry) {
    if (runs_.empty()) {
      runs_.emplace_back().reserve(LONGEST);
      runs_[0].push_back(entry);
      return;
    }
    Cursor at = find(entry);
    if (at.run == runs_.size()) at = {runs_.size() - 1, runs_.back().size()};
    if (runs_[at.run].size() == LONGEST) {
      split(at.run);
      if (at.at > LONGEST / 2) at = {at.run + 1, at.at - LONGEST / 2};
    }
    std::vector<FreeEntry>& run = runs_[at.run];
    run.insert(run.begin() + static_cast<std::ptrdiff_t>(at.at), entry);
  }

  void erase(const FreeEntry& entry) { erase(find(entry)); }

  void erase(Cursor at) {
    std::vector<FreeEntry>& run = runs_[at.run];
    run.erase(run.begin() + static_cast<std::ptrdiff_t>(at.at));
    if (run.empty()) runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(at.run));
  }

 private:
  static constexpr std::size_t LONGEST = 128;

  Cursor find(const FreeEntry& entry) const {
    std::size_t run = 0;
    if (runs_.size() > 1) {
      const auto ends_before = [](const std::vector<FreeEntry>& other, const FreeEntry& key) { return other.back() < key; };
      run = static_cast<std::size_t>(std::lower_bound(runs_.begin(), runs_.end(), entry, ends_before) - runs_.begin());
    }
    if (run == runs_.size()) return end();
    const std::vector<FreeEntry>& entries = runs_[run];
    const auto at = static_cast<std::size_t>(std::lower_bound(entries.begin(), entries.end(), entry) - entries.begin());
    return at < entries.size() ? Cursor{run, at} : Cursor{run + 1, 0};
  }

  void split(std::size_t run) {
    std::vector<FreeEntry> upper;
    upper.reserve(LONGEST);
    upper.assign(runs_[run].begin() + LONGEST / 2, runs_[run].end());
    runs_[run].resize(LONGEST / 2);
    runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(run) + 1, std::move(upper));
  }

  std::vector<std::vector<FreeEntry>> runs_;
};

}  // namespace ullage
