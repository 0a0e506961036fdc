#include "driver.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ullage {
namespace {

constexpr Bytes LOWEST_RESERVATION = 0x100000000000, HIGHEST_RESERVATION = 0x500000000000;
// The driver gives memory by whole pages; what the allocator asks for is nearly always a multiple.
constexpr Bytes PAGE = 2 * MIB;

// Whether none of the taken ranges (address -> bytes) is there.
bool is_gap(const std::map<Bytes, Bytes>& taken, Bytes address, Bytes size) {
  const auto after = taken.lower_bound(address);
  if (after != taken.end() && after->first < address + size) return false;
  if (after == taken.begin()) return true;
  const auto before = std::prev(after);
  return before->first + before->second <= address;
}

Bytes whole_pages(Bytes size) { return (size + PAGE - 1) / PAGE * PAGE; }

}  // namespace

Driver::Driver(Bytes total, Bytes others, Placement placement, bool log, std::vector<Bytes> recorded, bool begins_with)
    : total_(total),
      others_(others),
      space_(placement, begins_with || !recorded.empty()),
      is_downward_(placement == Placement::DESCENDING),
      logs_(log),
      next_reservation_(is_downward_ ? HIGHEST_RESERVATION : LOWEST_RESERVATION),
      recorded_(std::move(recorded)) {}

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

Range Driver::place(Bytes size) {
  if (space_.keeps_gaps() && next_recorded_ < recorded_.size()) {
    const Stretch recorded{recorded_[next_recorded_++], size};
    if (space_.is_free(recorded)) {
      space_.take(recorded, true);
      return {recorded.address, 0, true};
    }
    next_recorded_ = recorded_.size();  // this run is not the recorded one
  }
  return {space_.place(size), 0};
}

std::optional<Range> Driver::allocate(Bytes size) {
  if (!take(size)) {
    note(Call::MALLOC_FAILED, 0, size, 0, 0, 0);
    return std::nullopt;
  }
  Range range = place(whole_pages(size));
  range.number = mallocs_++;
  note(Call::MALLOC, range.number, size, 0, 0, range.address);
  return range;
}

void Driver::release(const Range& range, Bytes size) {
  used_ -= whole_pages(size);
  if (size) space_.release(range.address);
  note(Call::FREE, range.number, size, 0, 0, range.address);
}

Range Driver::found(Bytes address, Bytes size) {
  used_ += whole_pages(size);
  space_.take({address, whole_pages(size)}, false);
  return {address, mallocs_++, true};
}

Range Driver::found_reservation(Bytes address, Bytes size, Bytes mapped) {
  used_ += mapped;
  reserved_before_[address] = size;
  return {address, reservations_++, true};
}

Range Driver::reserve(Bytes size) {
  const Bytes room = (size + GIB - 1) / GIB * GIB + GIB;
  Bytes address = 0;
  do {
    if (is_downward_) next_reservation_ -= room;
    address = next_reservation_;
    if (!is_downward_) next_reservation_ += room;
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
