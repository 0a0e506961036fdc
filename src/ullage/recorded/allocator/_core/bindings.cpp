// The core as Python sees it: arrays in, arrays out, the interpreter's lock released while a program runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "address_space.hpp"
#include "replay.hpp"

namespace nb = nanobind;
using namespace ullage;

namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = std::vector<std::int64_t>;

// An array that owns what it was made of.
nb::object array_of(Numbers&& values) {
  auto* kept = new Numbers(std::move(values));
  nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<Numbers*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

Settings settings_of(const nb::tuple& fields) {
  Settings settings;
  settings.max_split_bytes = nb::cast<Bytes>(fields[0]);
  settings.max_non_split_rounding_bytes = nb::cast<Bytes>(fields[1]);
  settings.large_segment_bytes = nb::cast<Bytes>(fields[2]);
  settings.garbage_collection_threshold = nb::cast<double>(fields[3]);
  const auto divisions = nb::cast<std::vector<Bytes>>(fields[4]);
  std::copy_n(divisions.begin(), ROUNDUP_SLOTS, settings.roundup_divisions.begin());
  settings.expandable_segments = nb::cast<bool>(fields[5]);
  settings.throw_on_oom = nb::cast<bool>(fields[6]);
  settings.reserve_bytes = nb::cast<Bytes>(fields[7]);
  return settings;
}

nb::dict levels_of(const Levels& levels) {
  nb::dict found;
  found["allocated_bytes"] = levels.allocated;
  found["reserved_bytes"] = levels.reserved;
  found["active_bytes"] = levels.active;
  found["inactive_split_bytes"] = levels.inactive_split;
  found["requested_bytes"] = levels.requested;
  return found;
}

nb::object calls_of(const std::vector<CallRecord>& calls) {
  constexpr std::size_t FIELDS = sizeof(CallRecord) / sizeof(std::int64_t);
  const auto* first = reinterpret_cast<const std::int64_t*>(calls.data());
  return array_of(Numbers(first, first + calls.size() * FIELDS));
}

nb::dict dict_of(Replay&& replay) {
  nb::dict found;
  const auto put = [&](const char* name, Numbers& values) { found[name] = array_of(std::move(values)); };
  put("allocated_bytes", replay.allocated);
  put("reserved_bytes", replay.reserved);
  put("active_bytes", replay.active);
  put("inactive_split_bytes", replay.inactive_split);
  put("requested_bytes", replay.requested);
  put("address", replay.address);
  put("segment", replay.segment);
  put("offset", replay.offset);
  put("size_bytes", replay.placed_size);
  put("oom_ops", replay.oom_ops);
  put("rejected_ops", replay.rejected_ops);
  put("skipped_ops", replay.skipped_ops);
  put("block_address", replay.block_address);
  put("block_size", replay.block_size);
  put("block_requested", replay.block_requested);
  put("block_state", replay.block_state);
  put("block_stream", replay.block_stream);
  put("block_key", replay.block_key);
  put("block_segment", replay.block_segment);
  put("block_pool", replay.block_pool);
  put("block_is_small", replay.block_is_small);
  put("segment_address", replay.segment_address);
  put("segment_size", replay.segment_size);
  put("segment_is_expandable", replay.segment_is_expandable);
  found["calls"] = calls_of(replay.calls);
  found["call_counts"] = array_of(Numbers(replay.call_counts, replay.call_counts + 8));
  found["done"] = replay.done;
  found["now"] = levels_of(replay.now);
  found["peak"] = levels_of(replay.peak);
  found["peak_reserved_op"] = replay.peak_reserved_op;
  found["peak_allocated_op"] = replay.peak_allocated_op;
  found["retries"] = replay.counters.retries;
  found["ooms"] = replay.counters.ooms;
  found["rejections"] = replay.counters.rejections;
  found["address_ties"] = replay.counters.address_ties;
  found["synchronizations"] = replay.counters.synchronizations;
  found["broken"] = replay.broken;
  return found;
}

// What every key is below, or ~fault.
std::int64_t look_through(const Column& op, const Column& key, const Column& size, std::int64_t settings,
                          std::int64_t routes) {
  const Program program{op.data(), key.data(), size.data(), nullptr, static_cast<std::int64_t>(op.size()),
                        0,         {},         {},          {},      {}};
  std::int64_t ids = 0;
  nb::gil_scoped_release unlocked;
  const Fault fault = survey(program, settings, routes, ids);
  return fault == Fault::NONE ? ids : ~static_cast<std::int64_t>(fault);
}

// For every segment that is placed (size above 0): where the rule would have put it, among what was really there.
nb::object foretell_places(const Column& address, const Column& size, const Column& is_new, int placement) {
  Numbers foretold;
  foretold.reserve(address.size());
  {
    nb::gil_scoped_release unlocked;
    AddressSpace space(static_cast<Placement>(placement), true);
    for (std::size_t i = 0; i < address.size(); i++) {
      const auto at = static_cast<Bytes>(address.data()[i]);
      const std::int64_t bytes = size.data()[i];
      foretold.push_back(
          bytes > 0 && is_new.data()[i] ? static_cast<std::int64_t>(space.foretell(static_cast<Bytes>(bytes))) : -1);
      if (bytes > 0) space.take({at, static_cast<Bytes>(bytes)}, is_new.data()[i] != 0);
      else space.release(at);
    }
  }
  return array_of(std::move(foretold));
}

nb::dict run(const Column& op, const Column& key, const Column& size, const Column& stream, std::int64_t ids,
             const std::vector<Numbers>& routes, const nb::list& settings, Bytes total, Bytes others, int placement,
             int ties, bool routes_capture, double fraction, bool levels, bool places, bool calls,
             std::int64_t stop_after_ooms, const std::vector<Numbers>& start,
             const std::vector<Bytes>& recorded_addresses, std::int64_t setup) {
  Program program{
      op.data(), key.data(), size.data(),        stream.data(), static_cast<std::int64_t>(op.size()), ids, routes,
      {},        {},         recorded_addresses, setup};
  program.start = {start[0], start[1], start[2], start[3], start[4], start[5], start[6], start[7], start[8]};
  for (const nb::handle fields : settings) program.settings.push_back(settings_of(nb::cast<nb::tuple>(fields)));
  const Machine machine{
      total, others, static_cast<Placement>(placement), {static_cast<Ties>(ties), routes_capture}, fraction};
  const Wanted wanted{levels, places, calls, stop_after_ooms};
  Replay found;
  {
    nb::gil_scoped_release unlocked;
    found = replay(program, machine, wanted);
  }
  return dict_of(std::move(found));
}

}  // namespace

NB_MODULE(_allocator, module) {
  nb::set_leak_warnings(false);  // a thread that ends with the process may hold an array
  module.def("foretell", &foretell_places);
  module.def("survey", &look_through);
  module.def("replay", &run);
}
