// A pickle machine that knows data only: it makes no object, imports nothing and calls nothing, whatever the file says.
//
// Trace entries, frames and stacks, of which a snapshot has millions, become rows of tables as they come; the lists and
// dictionaries that held them are freed. Everything else is kept as a tree. It knows no Python. A file that would
// become many times its own size, as no snapshot does, is refused.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ullage {

// A file that is refused; the text says where and why.
struct PickleError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Kind : std::uint8_t { NONE, BOOL, INT, FLOAT, TEXT, BYTES, LIST, TUPLE, DICT, MARK };

// A number, or the index of a text or container.
struct Value {
  Kind kind = Kind::NONE;
  std::int64_t number = 0;
};

// The keys that are looked for. They are the first texts, so that a text's number identifies them.
enum Key {
  NAME,
  FILENAME,
  LINE,
  ACTION,
  ADDR,
  DEVICE_FREE,
  SIZE,
  STREAM,
  TIME_US,
  FRAMES,
  USER_METADATA,
  COMPILE_CONTEXT,
  POOL_ID
};
inline constexpr std::array<const char*, 13> KEYS{
    "name",    "filename", "line",          "action",          "addr",   "device_free", "size", "stream",
    "time_us", "frames",   "user_metadata", "compile_context", "pool_id"};

// What a list or dictionary turned out to be, and its row in that table.
enum class Shape : std::uint8_t { PLAIN, FRAME, ENTRY, STACK };

struct Container {
  std::int64_t row = -1;  // a plain one's items, which others have not: their place in `items_`; -1: none yet
  Shape shape = Shape::PLAIN;
  bool is_piecewise = false;  // a dictionary that came key by key: only its owner knows that it is complete
  bool is_nothing = false;    // a list, or such a dictionary, that was looked at, so that no file makes us look twice
};

// A column a field; texts and stacks are indices.
struct Entries {
  std::vector<std::int64_t> action, address, size, stream, time_us, stack, metadata, context, pool;
};

struct Frames {
  std::vector<std::int64_t> name, file, line;
};

// The keys that occur in frames, or in trace entries: the numbers of their texts, each once. A file with more keys than
// any version of PyTorch writes is not worth the memory.
class Keys {
 public:
  void note(std::int64_t text) {
    const auto at = static_cast<std::size_t>(text);
    if (at < is_known_.size() && is_known_[at]) return;
    if (found_.size() >= MOST) return;
    if (at >= is_known_.size()) is_known_.resize(at + 1);
    is_known_[at] = true;
    found_.push_back(text);
  }
  const std::vector<std::int64_t>& found() const { return found_; }

 private:
  static constexpr std::size_t MOST = 64;
  std::vector<bool> is_known_;
  std::vector<std::int64_t> found_;
};

class Pickle {
 public:
  // Read a whole file; throws PickleError.
  explicit Pickle(std::string_view data);

  const Value& root() const { return root_; }
  const Container& container(std::int64_t id) const { return containers_[static_cast<std::size_t>(id)]; }
  // Of a plain container; a dictionary's are key, value, key, value ...
  const std::vector<Value>& items(const Container& of) const {
    return of.shape != Shape::PLAIN || of.row < 0 ? nothing_ : items_[static_cast<std::size_t>(of.row)];
  }
  double real(std::int64_t id) const { return reals_[static_cast<std::size_t>(id)]; }
  const std::deque<std::string>& texts() const { return texts_; }
  std::size_t made_bytes() const;
  // What may be made of the file, and of that what Python sees of it: a snapshot of nothing but blocks needs the most,
  // 18 bytes for each of them.
  std::size_t most_made_bytes() const { return data_.size() * 19 + (std::size_t{96} << 20); }
  Entries entries;
  Frames frames;
  Keys entry_keys, frame_keys;
  std::vector<std::int64_t> stack_starts{0};  // stack n is stack_frames[starts[n]] .. [starts[n + 1]]
  std::vector<std::int64_t> stack_frames;

 private:
  void run();
  void step(unsigned char opcode);
  void refuse(unsigned char opcode);

  // pickle.cpp: reading bytes
  std::string_view take(std::size_t count);
  std::string_view line();
  // A number of the size of a type, and one that is a length: pickle.cpp alone has them.
  template <typename Unsigned>
  Unsigned number();
  template <typename Unsigned>
  std::size_t length();
  [[noreturn]] void fail(const std::string& what) const;

  Value pop();
  const Value& top() const;
  std::size_t mark() const;
  void push(Kind kind, std::int64_t number) { stack_.push_back({kind, number}); }
  void push_text(std::string_view text, Kind kind = Kind::TEXT) { push(kind, intern(text)); }
  void push_integer(std::string_view bytes);
  void push_decimal(std::string_view text);
  void push_real(double value);
  void push_container(Kind kind, std::size_t from);
  void remember(std::size_t at);
  void recall(std::size_t at);
  Container& target(Kind kind, std::size_t above);
  void settle(const Value& value);
  void add(Container& to, const Value* items, std::size_t count);
  void become(Container& container, Shape shape, std::size_t row);
  std::int64_t intern(std::string_view text);

  void check_made() const;

  // shapes.cpp: what containers turn out to be
  bool look_at_dictionary(Container& dictionary, const Value* given, std::size_t count);
  std::int64_t stack_of(const Value& list);
  std::int64_t pool_of(const Value& pair) const;

  std::string_view data_;
  std::size_t at_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
  std::deque<Container> containers_;
  std::deque<std::vector<Value>> items_;
  std::size_t items_bytes_ = 0;
  std::vector<std::int64_t> idle_;  // items of containers that became rows, to be used again
  const std::vector<Value> nothing_;
  std::vector<double> reals_;
  std::deque<std::string> texts_;
  std::size_t texts_bytes_ = 0;
  std::unordered_map<std::string_view, std::int64_t> text_ids_;
  std::unordered_map<std::uint64_t, std::vector<std::int64_t>> stack_ids_;
  Value root_;
};

}  // namespace ullage
