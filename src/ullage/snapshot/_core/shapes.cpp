// Frames, stacks and trace entries: dictionaries and lists that become rows of tables.
#include <algorithm>

#include "pickle.hpp"

namespace ullage {

void Pickle::look_at_dictionary(Container& dictionary) {
  Value name, file, line, action, address, frames_value, size, stream, time_us, metadata, context, pool;
  bool has_name = false, has_file = false, has_line = false, has_action = false, has_address = false;
  std::size_t frames_at = 0;
  for (std::size_t i = 0; i < dictionary.items.size(); i += 2) {
    if (dictionary.items[i].kind != Kind::TEXT) continue;
    const std::int64_t key = dictionary.items[i].number;
    const Value& value = dictionary.items[i + 1];
    if (key == keys_.name) name = value, has_name = value.kind == Kind::TEXT;
    else if (key == keys_.filename) file = value, has_file = value.kind == Kind::TEXT;
    else if (key == keys_.line) line = value, has_line = value.kind == Kind::INT;
    else if (key == keys_.action) action = value, has_action = value.kind == Kind::TEXT;
    else if (key == keys_.addr || key == keys_.device_free) address = value, has_address = value.kind == Kind::INT;
    else if (key == keys_.size) size = value;
    else if (key == keys_.stream) stream = value;
    else if (key == keys_.time_us) time_us = value;
    else if (key == keys_.user_metadata) metadata = value;
    else if (key == keys_.compile_context) context = value;
    else if (key == keys_.pool_id || key == keys_.segment_pool_id) pool = value;
    else if (key == keys_.frames) frames_value = value, frames_at = i + 1;
  }
  if (has_name && has_file && has_line) {
    frames.name.push_back(name.number);
    frames.file.push_back(file.number);
    frames.line.push_back(line.number);
    dictionary.shape = Shape::FRAME;
    dictionary.row = static_cast<std::int64_t>(frames.name.size() - 1);
    dictionary.items = {};
    return;
  }
  if (frames_at && frames_value.kind == Kind::LIST) stack_of(frames_value);
  if (!has_action || !has_address) return;
  const auto number = [](const Value& value, std::int64_t missing) { return value.kind == Kind::INT ? value.number : missing; };
  const auto text = [](const Value& value) { return value.kind == Kind::TEXT ? value.number : -1; };
  entries.action.push_back(action.number);
  entries.address.push_back(address.number);
  entries.size.push_back(number(size, 0));
  entries.stream.push_back(number(stream, 0));
  entries.time_us.push_back(number(time_us, -1));
  entries.metadata.push_back(text(metadata));
  entries.context.push_back(text(context));
  entries.stack.push_back(frames_value.kind == Kind::LIST ? stack_of(frames_value) : -1);
  std::int64_t pool_number = 0;
  if (pool.kind == Kind::TUPLE || pool.kind == Kind::LIST)
    for (const Value& part : container(pool.number).items)
      if (pool_number == 0 && part.kind == Kind::INT) pool_number = part.number;
  entries.pool.push_back(pool_number);
  dictionary.shape = Shape::ENTRY;
  dictionary.row = static_cast<std::int64_t>(entries.action.size() - 1);
  dictionary.items = {};
}

// The number of the stack that a list of frames is; -1 where it is none, or empty.
std::int64_t Pickle::stack_of(const Value& value) {
  Container& list = containers_[static_cast<std::size_t>(value.number)];
  if (list.shape == Shape::STACK) return list.row;
  if (list.shape != Shape::PLAIN || list.items.empty()) return -1;
  std::vector<std::int64_t> rows;
  std::uint64_t hash = 1469598103934665603ULL;
  for (const Value& item : list.items) {
    if (item.kind != Kind::DICT || container(item.number).shape != Shape::FRAME) return -1;
    rows.push_back(container(item.number).row);
    hash = (hash ^ static_cast<std::uint64_t>(rows.back())) * 1099511628211ULL;
  }
  std::int64_t found = -1;
  for (const std::int64_t id : stack_ids_[hash]) {
    const auto first = static_cast<std::size_t>(stack_starts[static_cast<std::size_t>(id)]);
    const auto last = static_cast<std::size_t>(stack_starts[static_cast<std::size_t>(id) + 1]);
    if (last - first == rows.size() && std::equal(rows.begin(), rows.end(), stack_frames.begin() + static_cast<std::ptrdiff_t>(first)))
      found = id;
  }
  if (found < 0) {
    found = static_cast<std::int64_t>(stack_starts.size() - 1);
    stack_frames.insert(stack_frames.end(), rows.begin(), rows.end());
    stack_starts.push_back(static_cast<std::int64_t>(stack_frames.size()));
    stack_ids_[hash].push_back(found);
  }
  list.shape = Shape::STACK;
  list.row = found;
  list.items = {};
  return found;
}

}  // namespace ullage
