#include "driver.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ullage {
namespace {

// Where addresses begin. They matter only where blocks are equally large (torch 2.11 takes the lower address).
constexpr Bytes LOWEST = 0x700000000000, HIGHEST = 0x780000000000;
constexpr Bytes LOWEST_RESERVATION = 0x100000000000, HIGHEST_RESERVATION = 0x500000000000;
// The driver gives memory by whole pages; what the allocator asks for is nearly always a multiple.
constexpr Bytes PAGE = 2 * MIB;

// Whether nothing of what is taken (address -> bytes) lies there.
bool is_gap(const std::map<Bytes, Bytes>& taken, Bytes address, Bytes size) {
  const auto after = taken.lower_bound(address);
  if (after != taken.end() && after->first < address + size) return false;
  if (after == taken.begin()) return true;
  const auto before = std::prev(after);
  return before->first + before->second <= address;
}

Bytes whole_pages(Bytes size) { return (size + PAGE - 1) / PAGE * PAGE; }

}  // namespace

Driver::Driver(Bytes total, Bytes others, Placement placement, bool log, std::vector<Bytes> recorded)
    : total_(total), others_(others), placement_(placement), logs_(log), recorded_(std::move(recorded)) {
  const bool down = placement == Placement::DESCENDING;
  next_ = down ? HIGHEST : LOWEST;
  next_reservation_ = down ? HIGHEST_RESERVATION : LOWEST_RESERVATION;
}

void Driver::note(Call call, std::int64_t number, Bytes size, Bytes offset, Bytes pages, Bytes address) {
  counts_[static_cast<int>(call)]++;
  if (!logs_) return;
  log_.push_back({op_, static_cast<std::int64_t>(call), number, static_cast<std::int64_t>(size),
                  static_cast<std::int64_t>(offset), static_cast<std::int64_t>(pages),
                  static_cast<std::int64_t>(address)});
}

bool Driver::take(Bytes size) {
  if (failures_ > 0) {
    failures_--;
    return false;
  }
  const Bytes taken = whole_pages(size);
  if (size > total_ || others_ + used_ + taken > total_) return false;
  used_ += taken;
  return true;
}

Bytes Driver::place(Bytes asked) {
  const Bytes size = whole_pages(asked);
  if (placement_ == Placement::FIRST_FIT && next_recorded_ < recorded_.size()) {
    const Bytes address = recorded_[next_recorded_++];
    if (is_gap(taken_, address, size)) {
      taken_[address] = size;
      return address;
    }
    next_recorded_ = recorded_.size();  // this run is not the recorded one
  }
  switch (placement_) {
    case Placement::ASCENDING:
      next_ += size;
      return next_ - size;
    case Placement::DESCENDING:
      return next_ -= size;
    case Placement::FIRST_FIT:
      break;
  }
  Bytes address = LOWEST;
  auto after = taken_.lower_bound(LOWEST);
  if (after != taken_.begin()) address = std::max(address, std::prev(after)->first + std::prev(after)->second);
  while (after != taken_.end() && after->first - address < size) {
    address = after->first + after->second;
    ++after;
  }
  taken_.emplace_hint(after, address, size);
  return address;
}

std::optional<Range> Driver::allocate(Bytes size) {
  if (!take(size)) {
    note(Call::MALLOC_FAILED, 0, size, 0, 0, 0);
    return std::nullopt;
  }
  const Range range{place(size), mallocs_++};
  note(Call::MALLOC, range.number, size, 0, 0, range.address);
  return range;
}

void Driver::release(const Range& range, Bytes size) {
  used_ -= whole_pages(size);
  if (placement_ == Placement::FIRST_FIT) taken_.erase(range.address);
  note(Call::FREE, range.number, size, 0, 0, range.address);
}

Range Driver::found(Bytes address, Bytes size) {
  used_ += whole_pages(size);
  const Bytes taken = whole_pages(size);
  if (placement_ == Placement::FIRST_FIT) taken_[address] = taken;
  if (placement_ == Placement::ASCENDING) next_ = std::max(next_, address + taken);
  if (placement_ == Placement::DESCENDING) next_ = std::min(next_, address);
  return {address, mallocs_++};
}

Range Driver::found_reservation(Bytes address, Bytes size, Bytes mapped) {
  used_ += mapped;
  reserved_before_[address] = size;
  return {address, reservations_++};
}

Range Driver::reserve(Bytes size) {
  const Bytes room = (size + GIB - 1) / GIB * GIB + GIB;
  Bytes address = 0;
  do {
    if (placement_ == Placement::DESCENDING) next_reservation_ -= room;
    address = next_reservation_;
    if (placement_ != Placement::DESCENDING) next_reservation_ += room;
  } while (!is_gap(reserved_before_, address, size));
  const Range range{address, reservations_++};
  note(Call::RESERVE, range.number, size, 0, 0, address);
  return range;
}

void Driver::unreserve(const Range& range, Bytes size) {
  note(Call::UNRESERVE, range.number, size, 0, 0, range.address);
}

bool Driver::map(const Range& range, Bytes offset, Bytes page, Bytes pages) {
  for (Bytes made = 0; made < pages; made++) {
    if (take(page)) continue;
    used_ -= made * whole_pages(page);  // a range is mapped whole or not at all
    note(Call::CREATE_FAILED, range.number, page, 0, made, 0);
    return false;
  }
  note(Call::MAP, range.number, page, offset, pages, range.address + offset);
  return true;
}

void Driver::unmap(const Range& range, Bytes offset, Bytes page, Bytes pages) {
  used_ -= whole_pages(page) * pages;
  note(Call::UNMAP, range.number, page, offset, pages, range.address + offset);
}

}  // namespace ullage
