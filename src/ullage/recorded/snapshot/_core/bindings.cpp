// The pickle machine as Python sees it: the bytes of a file in, tables and a tree of plain data out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "pickle.hpp"

namespace nb = nanobind;
using namespace ullage;

namespace {

using Numbers = std::vector<std::int64_t>;
constexpr int DEEPEST = 100;
// What Python's objects take: an entry of a dictionary with the space it grows into, a container with what names it here.
constexpr std::size_t CONTAINER_BYTES = 104, ENTRY_BYTES = 28, ITEM_BYTES = 9, NUMBER_BYTES = 32;

nb::object array_of(Numbers&& values) {
  auto* kept = new Numbers(std::move(values));
  nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<Numbers*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

nb::object text_of(const std::string& text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (!made) nb::raise_python_error();
  return nb::steal(made);
}

// A stack in the tree: its row in the table of stacks. A separate type, for a whole number that a file
// says there is none.
struct StackRow {
  std::int64_t row;
};

// The tree: a container that is named twice is one object, so that a small file stays small. A stack is its row; a
// list of trace entries is an array of their rows; frames and entries elsewhere are nothing.
class Tree {
 public:
  Tree(const Pickle& pickle, const nb::list& texts)
      : pickle_(pickle), texts_(texts), left_bytes_(pickle.most_made_bytes() - pickle.made_bytes()) {}

  nb::object of(const Value& value, int depth = 0) {
    switch (value.kind) {
      case Kind::NONE:
      case Kind::MARK: return nb::none();
      case Kind::BOOL: return nb::bool_(value.number != 0);
      case Kind::INT: return spend(NUMBER_BYTES), nb::int_(value.number);
      case Kind::FLOAT: return spend(NUMBER_BYTES), nb::float_(pickle_.real(value.number));
      case Kind::TEXT: return nb::borrow(texts_[static_cast<std::size_t>(value.number)]);
      case Kind::BYTES: {
        const std::string& bytes = pickle_.texts()[static_cast<std::size_t>(value.number)];
        spend(bytes.size() + NUMBER_BYTES);
        return nb::bytes(bytes.data(), bytes.size());
      }
      default: break;
    }
    const auto known = made_.find(value.number);
    if (known != made_.end()) return known->second;
    if (depth > DEEPEST) throw PickleError("it is nested deeper than a snapshot can be");
    const Container& container = pickle_.container(value.number);
    const std::vector<Value>& items = pickle_.items(container);
    if (container.shape == Shape::STACK) {
      spend(CONTAINER_BYTES);
      nb::object found = nb::cast(StackRow{container.row});
      made_.emplace(value.number, found);
      return found;
    }
    if (container.shape != Shape::PLAIN) return nb::none();
    if (items.empty() && value.kind != Kind::DICT) return empty_;
    spend(CONTAINER_BYTES + items.size() * (value.kind == Kind::DICT ? ENTRY_BYTES : ITEM_BYTES));
    if (std::optional<Numbers> rows = rows_of(container, value.kind)) {
      nb::object found = array_of(std::move(*rows));
      made_.emplace(value.number, found);
      return found;
    }
    if (value.kind == Kind::DICT) {
      nb::dict found;
      made_.emplace(value.number, found);
      for (std::size_t i = 0; i < items.size(); i += 2) {
        const Kind key = items[i].kind;
        if (key == Kind::LIST || key == Kind::DICT || key == Kind::TUPLE)
          throw PickleError("it contains a key that never occurs in a snapshot");
        found[of(items[i], depth + 1)] = of(items[i + 1], depth + 1);
      }
      return found;
    }
    nb::list found;  // a tuple too: which of both it was does not matter to anyone
    made_.emplace(value.number, found);
    for (const Value& item : items) found.append(of(item, depth + 1));
    return found;
  }

 private:
  void spend(std::size_t bytes) {
    if (bytes > left_bytes_)
      throw PickleError("it would take many times its own size in memory, which is not the case for a snapshot");
    left_bytes_ -= bytes;
  }

  std::optional<Numbers> rows_of(const Container& container, Kind kind) const {
    const std::vector<Value>& items = pickle_.items(container);
    if (kind != Kind::LIST || items.empty()) return std::nullopt;
    Numbers rows;
    rows.reserve(items.size());
    for (const Value& item : items) {
      if (item.kind != Kind::DICT || pickle_.container(item.number).shape != Shape::ENTRY) return std::nullopt;
      rows.push_back(pickle_.container(item.number).row);
    }
    return rows;
  }

  const Pickle& pickle_;
  const nb::list& texts_;
  std::size_t left_bytes_;
  const nb::list empty_;
  std::unordered_map<std::int64_t, nb::object> made_;
};

nb::dict read_pickle(const nb::bytes& data) {
  std::optional<Pickle> pickle;
  {
    nb::gil_scoped_release unlocked;
    pickle.emplace(std::string_view(data.c_str(), data.size()));
  }
  nb::list texts;
  for (const std::string& text : pickle->texts()) texts.append(text_of(text));
  nb::dict found;
  found["root"] = Tree(*pickle, texts).of(pickle->root());
  found["texts"] = texts;
  const auto named = [&](const Keys& keys) {
    nb::list names;
    for (const std::int64_t text : keys.found()) names.append(texts[static_cast<std::size_t>(text)]);
    return names;
  };
  found["entry_keys"] = named(pickle->entry_keys);
  found["frame_keys"] = named(pickle->frame_keys);
  found["file_bytes"] = data.size();
  const auto put = [&](const char* name, Numbers& values) { found[name] = array_of(std::move(values)); };
  put("action", pickle->entries.action);
  put("address", pickle->entries.address);
  put("size", pickle->entries.size);
  put("stream", pickle->entries.stream);
  put("time_us", pickle->entries.time_us);
  put("stack", pickle->entries.stack);
  put("metadata", pickle->entries.metadata);
  put("context", pickle->entries.context);
  put("pool", pickle->entries.pool);
  put("frame_name", pickle->frames.name);
  put("frame_file", pickle->frames.file);
  put("frame_line", pickle->frames.line);
  put("stack_starts", pickle->stack_starts);
  put("stack_frames", pickle->stack_frames);
  return found;
}

}  // namespace

NB_MODULE(_pickle, module) {
  nb::set_leak_warnings(false);
  nb::class_<StackRow>(module, "StackRow").def_ro("row", &StackRow::row);
  nb::exception<PickleError>(module, "PickleError", PyExc_ValueError);
  module.def("read", &read_pickle);
}
