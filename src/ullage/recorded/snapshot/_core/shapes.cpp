// Frames, stacks and trace entries: dictionaries and lists that become rows of tables.
#include <algorithm>
#include <array>

#include "pickle.hpp"

namespace ullage {

// Whether a dictionary is a frame or a trace entry, and thus a row from now on: nothing of its items is kept then.
bool Pickle::look_at_dictionary(Container& dictionary, const Value* given, std::size_t count) {
  std::array<Value, KEYS.size()> found;  // by the key's number
  for (std::size_t i = 0; i < count; i += 2)
    if (given[i].kind == Kind::TEXT && given[i].number < static_cast<std::int64_t>(KEYS.size()))
      found[static_cast<std::size_t>(given[i].number)] = given[i + 1];
  const auto note = [&](Keys& keys) {
    for (std::size_t i = 0; i < count; i += 2)
      if (given[i].kind == Kind::TEXT) keys.note(given[i].number);
  };
  const Value &name = found[NAME], &file = found[FILENAME], &line = found[LINE], &action = found[ACTION];
  if (name.kind == Kind::TEXT && file.kind == Kind::TEXT && line.kind == Kind::INT) {
    note(frame_keys);
    frames.name.push_back(name.number);
    frames.file.push_back(file.number);
    frames.line.push_back(line.number);
    become(dictionary, Shape::FRAME, frames.name.size() - 1);
    return true;
  }
  const std::int64_t stack = found[FRAMES].kind == Kind::LIST ? stack_of(found[FRAMES]) : -1;
  const Value& address = found[ADDR].kind == Kind::INT ? found[ADDR] : found[DEVICE_FREE];
  if (action.kind != Kind::TEXT || address.kind != Kind::INT) return false;
  const auto number = [&](const Value& value, std::int64_t missing) {
    if (value.kind == Kind::FLOAT) fail("it has an entry with a fraction where PyTorch writes a whole number");
    return value.kind == Kind::INT ? value.number : missing;
  };
  const auto text = [](const Value& value) { return value.kind == Kind::TEXT ? value.number : -1; };
  note(entry_keys);
  entries.action.push_back(action.number);
  entries.address.push_back(address.number);
  entries.size.push_back(number(found[SIZE], 0));
  entries.stream.push_back(number(found[STREAM], 0));
  entries.time_us.push_back(number(found[TIME_US], -1));
  entries.metadata.push_back(text(found[USER_METADATA]));
  entries.context.push_back(text(found[COMPILE_CONTEXT]));
  entries.stack.push_back(stack);
  entries.pool.push_back(pool_of(found[POOL_ID]));
  become(dictionary, Shape::ENTRY, entries.action.size() - 1);
  return true;
}

// A pool is known by a pair of which one number is 0; both are, of the default pool.
std::int64_t Pickle::pool_of(const Value& pair) const {
  if (pair.kind != Kind::TUPLE && pair.kind != Kind::LIST) return 0;
  const std::vector<Value>& parts = items(container(pair.number));
  if (parts.size() != 2 || parts[0].kind != Kind::INT || parts[1].kind != Kind::INT) return 0;
  return parts[0].number ? parts[0].number : parts[1].number;
}

// The number of the stack that a list of frames is; -1 where it is none, or empty.
std::int64_t Pickle::stack_of(const Value& value) {
  Container& list = containers_[static_cast<std::size_t>(value.number)];
  if (list.shape == Shape::STACK) return list.row;
  if (list.shape != Shape::PLAIN || list.row < 0 || list.is_nothing) return -1;
  std::vector<std::int64_t> rows;
  std::uint64_t hash = 1469598103934665603ULL;
  for (const Value& item : items(list)) {
    if (item.kind != Kind::DICT || container(item.number).shape != Shape::FRAME) {
      list.is_nothing = true;
      return -1;
    }
    rows.push_back(container(item.number).row);
    hash = (hash ^ static_cast<std::uint64_t>(rows.back())) * 1099511628211ULL;
  }
  std::int64_t found = -1;
  for (const std::int64_t id : stack_ids_[hash]) {
    const auto first = static_cast<std::size_t>(stack_starts[static_cast<std::size_t>(id)]);
    const auto last = static_cast<std::size_t>(stack_starts[static_cast<std::size_t>(id) + 1]);
    if (last - first == rows.size() &&
        std::equal(rows.begin(), rows.end(), stack_frames.begin() + static_cast<std::ptrdiff_t>(first)))
      found = id;
  }
  if (found < 0) {
    found = static_cast<std::int64_t>(stack_starts.size() - 1);
    stack_frames.insert(stack_frames.end(), rows.begin(), rows.end());
    stack_starts.push_back(static_cast<std::int64_t>(stack_frames.size()));
    stack_ids_[hash].push_back(found);
  }
  become(list, Shape::STACK, static_cast<std::size_t>(found));
  return found;
}

}  // namespace ullage
