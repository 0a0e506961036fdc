// The free blocks of one pool and stream, in the allocator's order: by size, then by the version's tie-break, then by
// address. They lie in bins by size, sixteen to a power of two, and in each bin in sorted runs: nearly always the few
// entries that a search has to look at are side by side, where a tree's nodes would be anywhere.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "settings.hpp"

namespace ullage {

struct FreeEntry {
  Bytes size;
  std::uint64_t tie;  // by the version: 0, when the block was made, or when its segment was
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
    std::uint32_t bin, run, at;
    bool operator==(const Cursor& other) const { return bin == other.bin && run == other.run && at == other.at; }
    bool operator!=(const Cursor& other) const { return !(*this == other); }
  };

  Cursor begin() const { return {next_bin(0), 0, 0}; }
  Cursor end() const { return {BINS, 0, 0}; }
  bool empty() const { return begin() == end(); }
  const FreeEntry& operator[](Cursor cursor) const { return bins_[cursor.bin][cursor.run][cursor.at]; }

  Cursor next(Cursor cursor) const {
    cursor.at++;
    return settled(cursor);
  }
  Cursor previous(Cursor cursor) const {
    if (cursor.at > 0) return {cursor.bin, cursor.run, cursor.at - 1};
    if (cursor.run == 0) {
      do cursor.bin--;
      while (!is_used(cursor.bin));
      cursor.run = static_cast<std::uint32_t>(bins_[cursor.bin].size());
    }
    cursor.run--;
    return {cursor.bin, cursor.run, static_cast<std::uint32_t>(bins_[cursor.bin][cursor.run].size() - 1)};
  }

  // The last of those that are as large as this one.
  const FreeEntry& last_as_large(Cursor cursor) const {
    const Cursor after = lower_bound((*this)[cursor].size + SMALLEST_BLOCK);
    return (*this)[previous(after)];
  }

  // The first block of at least this size.
  Cursor lower_bound(Bytes size) const {
    const std::uint32_t bin = bin_of(size);
    return is_used(bin) ? settled(find(bin, {size, 0, 0, 0})) : Cursor{next_bin(bin), 0, 0};
  }

  void insert(const FreeEntry& entry) {
    const std::uint32_t bin = bin_of(entry.size);
    if (bin >= bins_.size()) bins_.resize(bin + 1);
    Bin& runs = bins_[bin];
    if (!is_used(bin)) {
      if (runs.empty()) runs.emplace_back();
      runs[0].push_back(entry);
      used_[bin / 64] |= std::uint64_t{1} << bin % 64;
      return;
    }
    Cursor at = find(bin, entry);
    if (runs[at.run].size() == LONGEST) {
      split(runs, at.run);
      if (at.at > LONGEST / 2) at = {bin, at.run + 1, at.at - LONGEST / 2};
    }
    Run& run = runs[at.run];
    run.insert(run.begin() + at.at, entry);
  }

  void erase(const FreeEntry& entry) { erase(find(bin_of(entry.size), entry)); }

  void erase(Cursor at) {
    Bin& runs = bins_[at.bin];
    Run& run = runs[at.run];
    run.erase(run.begin() + at.at);
    if (!run.empty()) return;
    if (runs.size() > 1) runs.erase(runs.begin() + at.run);
    else used_[at.bin / 64] &= ~(std::uint64_t{1} << at.bin % 64);  // its memory stays for the next
  }

 private:
  using Run = std::vector<FreeEntry>;
  using Bin = std::vector<Run>;  // without empty runs, but for the only one of a bin that is not used
  static constexpr std::uint32_t LONGEST = 64, BINS = 832;

  // Larger sizes never have lower bins: the four bits below the highest one, in units of the smallest block.
  static std::uint32_t bin_of(Bytes size) {
    const Bytes units = size / SMALLEST_BLOCK;
    if (units < 16) return static_cast<std::uint32_t>(units);
    const auto width = static_cast<std::uint32_t>(64 - __builtin_clzll(units));
    return (width - 4) * 16 + (static_cast<std::uint32_t>(units >> (width - 5)) & 15);
  }

  bool is_used(std::uint32_t bin) const { return used_[bin / 64] >> bin % 64 & 1; }

  // The first bin from this one on that holds anything.
  std::uint32_t next_bin(std::uint32_t bin) const {
    if (bin >= BINS) return BINS;
    std::uint64_t word = used_[bin / 64] & ~std::uint64_t{0} << bin % 64;
    for (std::uint32_t at = bin / 64;;) {
      if (word) return at * 64 + static_cast<std::uint32_t>(__builtin_ctzll(word));
      if (++at == used_.size()) return BINS;
      word = used_[at];
    }
  }

  // Where an entry is, or would be: behind the last of a run only in the last run.
  Cursor find(std::uint32_t bin, const FreeEntry& entry) const {
    const Bin& runs = bins_[bin];
    std::uint32_t run = 0;
    if (runs.size() > 1) {
      const auto ends_before = [](const Run& other, const FreeEntry& key) { return other.back() < key; };
      run =
          static_cast<std::uint32_t>(std::lower_bound(runs.begin(), runs.end() - 1, entry, ends_before) - runs.begin());
    }
    const Run& entries = runs[run];
    return {bin, run,
            static_cast<std::uint32_t>(std::lower_bound(entries.begin(), entries.end(), entry) - entries.begin())};
  }

  // A cursor that may stand behind its run, on an entry or at the end.
  Cursor settled(Cursor cursor) const {
    const Bin& runs = bins_[cursor.bin];
    if (cursor.at < runs[cursor.run].size()) return cursor;
    if (cursor.run + 1 < runs.size()) return {cursor.bin, cursor.run + 1, 0};
    return {next_bin(cursor.bin + 1), 0, 0};
  }

  static void split(Bin& runs, std::uint32_t run) {
    Run upper(runs[run].begin() + LONGEST / 2, runs[run].end());
    runs[run].resize(LONGEST / 2);
    runs.insert(runs.begin() + run + 1, std::move(upper));
  }

  std::vector<Bin> bins_;
  std::array<std::uint64_t, BINS / 64> used_{};
};

}  // namespace ullage
