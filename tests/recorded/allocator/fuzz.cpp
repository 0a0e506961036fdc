// Random programs on the core alone, for sanitizers: `make sanitize`. Checks what must hold whatever the program does.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "replay.hpp"

using namespace ullage;

namespace {

int failures = 0;
void expect(bool holds, const char* what, std::uint64_t seed) {
  if (holds) return;
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), what);
  failures++;
}

struct Written {
  std::vector<std::int64_t> op, key, size, stream;
  std::vector<std::vector<std::int64_t>> routes{{0}, {0x100, 0x200}};
  void add(Op what, std::int64_t k = 0, std::int64_t bytes = 0, std::int64_t s = 0) {
    op.push_back(static_cast<std::int64_t>(what));
    key.push_back(k);
    size.push_back(bytes);
    stream.push_back(s);
  }
};

using Chance = std::mt19937_64;

// Up to four segments that are there before, one behind the other, of blocks of any size; those allocated have the first keys.
// Not only what a real allocator leaves: two free blocks may lie side by side, and sizes need not be multiples of anything.
Program::Start random_start(Chance& chance, std::int64_t& ids) {
  Program::Start start;
  Bytes next = 0x6fffff000000 + chance() % 2 * 64 * MIB, next_reservation = 0x100000000000 + chance() % 2 * 64 * GIB;
  for (std::uint64_t segments = chance() % 5; segments > 0; segments--) {
    const bool is_small = chance() % 2, is_expandable = chance() % 3 == 0;
    Bytes& address = is_expandable ? next_reservation : next;
    start.address.push_back(static_cast<std::int64_t>(address));
    start.stream.push_back(static_cast<std::int64_t>(0x100 * (chance() % 4)));
    start.is_small.push_back(is_small);
    start.is_expandable.push_back(is_expandable);
    const auto blocks = static_cast<std::int64_t>(1 + chance() % 5);
    start.blocks_in_segment.push_back(blocks);
    Bytes end = address;
    for (std::int64_t n = 0; n < blocks; n++) {
      const bool is_free = chance() % 2;
      Bytes size = 1 + chance() % ((is_small ? 1 : 40) * MIB);
      if (is_expandable && n == blocks - 1) size += -(end + size - address) % (2 * MIB);  // pages are mapped whole
      start.block_size.push_back(static_cast<std::int64_t>(size));
      start.block_requested.push_back(static_cast<std::int64_t>(size / 2));
      start.block_key.push_back(is_free ? -1 : ids++);
      end += size;
    }
    // Behind the whole address space of an expandable one, which is at least 9/8 of the card.
    address = (end / (2 * MIB) + 1 + chance() % 3) * 2 * MIB + (is_expandable ? 6 * GIB : 0);
  }
  return start;
}

// Where the first cudaMallocs lie: places that may be taken already.
std::vector<Bytes> random_addresses(Chance& chance) {
  std::vector<Bytes> found;
  for (std::uint64_t count = chance() % 3 ? 0 : chance() % 20; count > 0; count--) found.push_back(0x700000000000 + chance() % 500 * 2 * MIB);
  return found;
}

void run(std::uint64_t seed, int length) {
  Chance chance(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(chance() % n); };
  Written program;
  std::int64_t ids = 0;
  Settings settings;
  settings.expandable_segments = below(2);
  if (below(3) == 0) settings.garbage_collection_threshold = 0.5;
  if (below(3) == 0) settings.roundup_divisions.fill(Bytes{1} << below(5));
  if (below(4) == 0) settings.large_segment_bytes = (11 + static_cast<Bytes>(below(100))) * MIB;
  if (below(3) == 0) settings.max_split_bytes = settings.large_segment_bytes + static_cast<Bytes>(below(200)) * MIB;
  if (below(4) == 0) settings.reserve_bytes = (1 + static_cast<Bytes>(below(4000))) * MIB;
  settings.throw_on_oom = below(8) == 0;
  const Program::Start start = random_start(chance, ids);
  std::int64_t pools = 0;
  for (int i = 0; i < length; i++) {
    const std::int64_t stream = 0x100 * below(4);
    switch (below(40)) {
      case 0: program.add(Op::EMPTY_CACHE); break;
      case 1: program.add(Op::FAIL_NEXT, below(4)); break;
      case 2: program.add(Op::HOLD, 0, 0, stream); break;
      case 3: program.add(Op::UNHOLD, 0, 0, stream); break;
      case 4: program.add(Op::COMPLETE, 0, 0, stream); break;
      case 5: program.add(Op::SYNCHRONIZE); break;
      case 6: program.add(Op::SET_OTHERS, 0, below(1ULL << 30)); break;
      case 7: program.add(Op::BEGIN_POOL, ++pools, below(3) - 1); break;
      case 8: if (pools) program.add(Op::END_POOL, 1 + below(static_cast<std::uint64_t>(pools))); break;
      case 9: if (pools) program.add(Op::RELEASE_POOL, 1 + below(static_cast<std::uint64_t>(pools))); break;
      case 10: program.add(Op::SET_SETTINGS, below(2)); break;
      case 11: case 12: case 13: if (ids) program.add(Op::RECORD_STREAM, below(static_cast<std::uint64_t>(ids)), 0, stream); break;
      default:
        if (ids && below(2)) program.add(Op::FREE, below(static_cast<std::uint64_t>(ids)));
        else program.add(Op::ALLOCATE, ids++, 1 + below(std::uint64_t{1} << (8 + below(21))), stream);
    }
  }
  Settings other = settings;
  other.expandable_segments = !settings.expandable_segments;
  Program columns{program.op.data(), program.key.data(), program.size.data(), program.stream.data(),
                  static_cast<std::int64_t>(program.op.size()), ids, program.routes, {settings, settings, other}, start, random_addresses(chance)};
  const Machine machine{4 * GIB, 0, static_cast<Placement>(below(4)), {static_cast<Ties>(below(3)), below(2) != 0}, below(3) ? 1.0 : 0.5};
  const Replay found = replay(columns, machine, {true, true, true, 0});
  std::int64_t allocated = 0, active = 0, mapped = 0, whole = 0, requested = 0;
  for (std::size_t i = 0; i < found.block_size.size(); i++) {
    const auto state = static_cast<State>(found.block_state[i]);
    if (state == State::ALLOCATED) allocated += found.block_size[i];
    if (state == State::ALLOCATED || state == State::WAITING) active += found.block_size[i], requested += found.block_requested[i];
    if (state != State::UNMAPPED) mapped += found.block_size[i];
    whole += found.block_size[i];
    if (i && found.block_segment[i] == found.block_segment[i - 1])
      expect(found.block_address[i] == found.block_address[i - 1] + found.block_size[i - 1], "blocks leave a gap", seed);
  }
  std::int64_t segments = 0, end = 0;
  for (std::size_t i = 0; i < found.segment_size.size(); i++) {
    segments += found.segment_size[i];
    if (found.segment_is_expandable[i]) continue;  // theirs is a range of its own
    expect(found.segment_address[i] >= end, "segments overlap", seed);
    end = found.segment_address[i] + found.segment_size[i];
  }
  expect(whole == segments, "blocks do not fill their segments", seed);
  if (!found.broken.empty()) return;
  for (std::size_t i = 0; i < found.block_key.size(); i++)
    expect((found.block_key[i] >= 0) == (static_cast<State>(found.block_state[i]) == State::ALLOCATED), "an allocated block without a key", seed);
  expect(allocated == found.now.allocated, "allocated bytes are not the sum of the blocks", seed);
  expect(active == found.now.active, "active bytes are not the sum of the blocks", seed);
  expect(requested == found.now.requested, "requested bytes are not the sum of the blocks", seed);
  expect(mapped == found.now.reserved, "reserved bytes are not the sum of the blocks", seed);
  expect(found.peak.reserved >= found.now.reserved && found.peak.allocated <= found.peak.reserved, "peaks", seed);
}

}  // namespace

int main(int count, char** words) {
  const std::uint64_t first = count > 1 ? std::strtoull(words[1], nullptr, 10) : std::random_device{}();
  const int runs = count > 2 ? std::atoi(words[2]) : 300;
  for (int i = 0; i < runs; i++) run(first + static_cast<std::uint64_t>(i), 2000);
  std::printf("%d programs of 2000 operations from seed %llu: %d failures\n", runs, static_cast<unsigned long long>(first), failures);
  return failures ? 1 : 0;
}
