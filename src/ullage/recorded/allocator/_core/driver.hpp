// The driver under the allocator: how much memory there is, its addresses, and what is made to fail. It is CUDA's part
// of a replay: cudaMalloc, cudaFree, and the virtual memory functions of expandable segments.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "address_space.hpp"

namespace ullage {

enum class Call : int { MALLOC, MALLOC_FAILED, FREE, RESERVE, UNRESERVE, MAP, UNMAP, CREATE_FAILED };

// One call of the driver; what does not apply is 0.
struct CallRecord {
  std::int64_t op;      // the program's operation that caused it
  std::int64_t call;    // Call
  std::int64_t number;  // of the cudaMalloc, or of the reservation
  std::int64_t size;    // MALLOC, FREE, RESERVE, UNRESERVE: bytes; MAP, UNMAP, CREATE_FAILED: bytes of a page
  std::int64_t offset;  // MAP, UNMAP: bytes from the reservation's start
  std::int64_t count;   // MAP, UNMAP: pages; CREATE_FAILED: pages of the request that had been made
  std::int64_t address;
};

struct Range {
  Bytes address;
  std::int64_t number;
  bool is_told = false;  // the address was recorded, not made up here
};

class Driver {
 public:
  // `recorded`: addresses that the first cudaMallocs get, as long as they are free, where the placement keeps gaps.
  // `begins_with`: whether segments will be found, which were there before the program.
  Driver(Bytes total, Bytes others, Placement placement, bool log, std::vector<Bytes> recorded, bool begins_with);

  std::optional<Range> allocate(Bytes size);
  void release(const Range& range, Bytes size);
  // What was there before the program began: a cudaMalloc, or pages that are mapped in a reservation.
  Range found(Bytes address, Bytes size);
  Range found_reservation(Bytes address, Bytes size, Bytes mapped);
  Range reserve(Bytes size);
  void unreserve(const Range& range, Bytes size);
  bool map(const Range& range, Bytes offset, Bytes page, Bytes pages);
  void unmap(const Range& range, Bytes offset, Bytes page, Bytes pages);

  Bytes total() const { return total_; }
  Bytes used() const { return used_; }
  void set_others(Bytes size) { others_ = size; }
  void fail_next(std::int64_t count) { failures_ = count; }
  void at_operation(std::int64_t op) { op_ = op; }
  const std::vector<CallRecord>& log() const { return log_; }
  std::int64_t count(Call call) const { return counts_[static_cast<int>(call)]; }

 private:
  bool take(Bytes size);
  Range place(Bytes size);
  void note(Call call, std::int64_t number, Bytes size, Bytes offset, Bytes pages, Bytes address);

  Bytes total_, others_, used_ = 0;
  AddressSpace space_;
  bool is_downward_, logs_;
  std::int64_t failures_ = 0, op_ = 0, mallocs_ = 0, reservations_ = 0;
  Bytes next_reservation_;
  std::vector<Bytes> recorded_;
  std::size_t next_recorded_ = 0;
  std::map<Bytes, Bytes> reserved_before_;  // address -> bytes, of what was there before the program
  std::vector<CallRecord> log_;
  std::int64_t counts_[8] = {};
};

}  // namespace ullage
