// libFuzzer's target for the replay, built with the address and undefined-behaviour sanitizers by tools/fuzz_readers.sh.
// A program is what came of somebody's file: any operation with any size on any stream, as `survey` lets through.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "replay.hpp"

using namespace ullage;

namespace {

// One operation: what, which block, on which stream, and how its size is meant.
struct Record {
  std::uint8_t op, key, stream, shift;
  std::uint32_t size;
};

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check(const Replay& found) {
  std::int64_t whole = 0, segments = 0;
  for (std::size_t i = 0; i < found.block_size.size(); i++) whole += found.block_size[i];
  for (std::size_t i = 0; i < found.segment_size.size(); i++) segments += found.segment_size[i];
  expect(whole == segments, "blocks do not fill their segments");
  expect(found.peak.allocated <= found.peak.reserved, "more was allocated than reserved");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  Settings settings;
  settings.expandable_segments = data[0] & 1;
  if (data[0] & 2) settings.garbage_collection_threshold = 0.5;
  if (data[0] & 4) settings.roundup_divisions.fill(Bytes{1} << (data[1] % 6));
  if (data[0] & 8) settings.large_segment_bytes = (11 + Bytes{data[1]}) * MIB;
  if (data[0] & 16) settings.max_split_bytes = settings.large_segment_bytes + Bytes{data[2]} * MIB;
  if (data[0] & 32) settings.reserve_bytes = (1 + Bytes{data[2]}) * 16 * MIB;
  settings.throw_on_oom = data[0] & 64;
  Settings other = settings;
  other.expandable_segments = !settings.expandable_segments;

  std::vector<std::int64_t> op, key, bytes, stream;
  for (std::size_t at = 4; at + sizeof(Record) <= size; at += sizeof(Record)) {
    Record one;
    std::memcpy(&one, data + at, sizeof one);
    op.push_back(one.op % (static_cast<int>(Op::NOTHING) + 1));
    key.push_back(one.key);
    stream.push_back(0x100 * (one.stream % 5));
    const auto scaled = static_cast<std::int64_t>(std::uint64_t{one.size} << (one.shift % 40));
    bytes.push_back(op.back() == static_cast<std::int64_t>(Op::BEGIN_POOL) ? one.size % 4 - 1 : scaled);
  }
  Program program{op.data(), key.data(), bytes.data(), stream.data(), static_cast<std::int64_t>(op.size()), 0, {{0}, {0x100, 0x200}},
                  {settings, settings, other}, {}, {}};
  if (survey(program, 2, 2, program.ids) != Fault::NONE) return 0;
  const Machine machine{4 * GIB, 0, static_cast<Placement>(data[3] % 4), {static_cast<Ties>(data[3] / 4 % 3), (data[3] & 64) != 0},
                        data[3] & 128 ? 0.5 : 1.0};
  check(replay(program, machine, {true, true, true, 0}));
  return 0;
}
