#include "pickle.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ullage {
namespace {

constexpr std::size_t STEPS_BETWEEN_CHECKS = 1024;
constexpr std::size_t BYTES_PER_ENTRY = 48;

std::string place(std::size_t at) { return "at byte " + std::to_string(at); }

void append_utf8(std::string& text, std::uint32_t letter) {
  const auto byte = [&](std::uint32_t value) { text.push_back(static_cast<char>(value)); };
  if (letter < 0x80) return byte(letter);
  if (letter < 0x800) return byte(0xc0 | letter >> 6), byte(0x80 | (letter & 0x3f));
  if (letter < 0x10000)
    return byte(0xe0 | letter >> 12), byte(0x80 | (letter >> 6 & 0x3f)), byte(0x80 | (letter & 0x3f));
  byte(0xf0 | (letter >> 18 & 7)), byte(0x80 | (letter >> 12 & 0x3f)), byte(0x80 | (letter >> 6 & 0x3f)),
      byte(0x80 | (letter & 0x3f));
}

// A text of protocol 0: Latin-1, with \uXXXX and \UXXXXXXXX for the rest.
std::string unescaped(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::size_t digits = line[i] == '\\' && i + 1 < line.size() ? (line[i + 1] == 'u'   ? 4
                                                                         : line[i + 1] == 'U' ? 8
                                                                                              : 0)
                                                                      : 0;
    if (digits && i + 2 + digits <= line.size()) {
      const std::string code(line.substr(i + 2, digits));
      append_utf8(text, static_cast<std::uint32_t>(std::strtoul(code.c_str(), nullptr, 16)));
      i += 1 + digits;
    } else {
      append_utf8(text, static_cast<unsigned char>(line[i]));
    }
  }
  return text;
}

}  // namespace

Pickle::Pickle(std::string_view data) : data_(data) {
  for (const char* key : KEYS) intern(key);  // so that the number of each is its place there
  // Room for as many entries as files of this size have: what is not filled costs nothing, what grows is copied.
  const std::size_t expected = data.size() / BYTES_PER_ENTRY;
  for (auto* column : {&entries.action, &entries.address, &entries.size, &entries.stream, &entries.time_us,
                       &entries.stack, &entries.metadata, &entries.context, &entries.pool})
    column->reserve(expected);
  run();
}

void Pickle::fail(const std::string& what) const { throw PickleError(what + " " + place(at_)); }

// ---- bytes

std::string_view Pickle::take(std::size_t count) {
  if (count > data_.size() - at_) fail("it ends in the middle of a value");
  at_ += count;
  return data_.substr(at_ - count, count);
}

std::string_view Pickle::line() {
  const std::size_t end = data_.find('\n', at_);
  if (end == std::string_view::npos) fail("it ends in the middle of a line");
  const std::string_view text = data_.substr(at_, end - at_);
  at_ = end + 1;
  return text;
}

template <typename Unsigned>
Unsigned Pickle::number() {
  const std::string_view raw = take(sizeof(Unsigned));
  Unsigned value;
  std::memcpy(&value, raw.data(), sizeof value);  // little-endian, as every machine that runs PyTorch with CUDA
  return value;
}

template <typename Unsigned>
std::size_t Pickle::length() {
  const std::uint64_t value = number<Unsigned>();
  if (value > data_.size() - at_) fail("it contains a value that is longer than the file");
  return value;
}

std::int64_t Pickle::intern(std::string_view text) {
  const auto found = text_ids_.find(text);
  if (found != text_ids_.end()) return found->second;
  texts_.emplace_back(text);
  texts_bytes_ += text.size() + sizeof(std::string) + 64;  // and the map's node
  const auto id = static_cast<std::int64_t>(texts_.size() - 1);
  text_ids_.emplace(texts_.back(), id);
  return id;
}

// ---- the stack of values

Value Pickle::pop() {
  const Value value = top();
  stack_.pop_back();
  return value;
}

const Value& Pickle::top() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("it uses a value that does not exist");
  return stack_.back();
}

std::size_t Pickle::mark() const {
  if (marks_.empty()) fail("it goes back to a mark that does not exist");
  return marks_.back();
}

void Pickle::push_integer(std::string_view bytes) {
  // Nine bytes, the last of them 0, are a number of 64 bits without a sign: kept bit by bit.
  if (bytes.size() > 9 || (bytes.size() == 9 && bytes.back()))
    fail("it contains an integer that is too large for a snapshot");
  std::uint64_t value = !bytes.empty() && (bytes.back() & 0x80) ? ~std::uint64_t{0} : 0;
  for (std::size_t at = bytes.size() < 8 ? bytes.size() : 8; at-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[at]);
  push(Kind::INT, static_cast<std::int64_t>(value));
}

void Pickle::push_decimal(std::string_view text) {
  if (!text.empty() && text.back() == 'L') text.remove_suffix(1);
  if (text == "00" || text == "01") return push(Kind::BOOL, text == "01");
  const std::string digits(text);
  char* end = nullptr;
  errno = 0;
  const auto value = digits[0] == '-' ? static_cast<std::uint64_t>(std::strtoll(digits.c_str(), &end, 10))
                                      : static_cast<std::uint64_t>(std::strtoull(digits.c_str(), &end, 10));
  if (digits.empty() || *end || end != digits.c_str() + digits.size()) fail("it contains an invalid integer");
  if (errno) fail("it contains an integer that is too large for a snapshot");
  push(Kind::INT, static_cast<std::int64_t>(value));
}

void Pickle::push_real(double value) {
  reals_.push_back(value);
  push(Kind::FLOAT, static_cast<std::int64_t>(reals_.size() - 1));
}

// Make a container of the values above `from` on the stack.
void Pickle::push_container(Kind kind, std::size_t from) {
  Container& made = containers_.emplace_back();
  const auto id = static_cast<std::int64_t>(containers_.size() - 1);
  const Value* added = stack_.data() + from;
  const std::size_t count = stack_.size() - from;
  if (kind == Kind::DICT && count % 2) fail("it contains a dictionary with a key without a value");
  if (count && (kind != Kind::DICT || !look_at_dictionary(made, added, count))) add(made, added, count);
  stack_.resize(from);
  push(kind, id);
}

void Pickle::add(Container& to, const Value* items, std::size_t count) {
  if (!count) return;
  if (to.row < 0 && idle_.empty()) {
    to.row = static_cast<std::int64_t>(items_.size());
    items_.emplace_back();
  } else if (to.row < 0) {
    to.row = idle_.back();
    idle_.pop_back();
  }
  std::vector<Value>& all = items_[static_cast<std::size_t>(to.row)];
  const std::size_t before = all.capacity();
  all.insert(all.end(), items, items + count);
  items_bytes_ += (all.capacity() - before) * sizeof(Value);
}

// A plain container is a row of a table from now on.
void Pickle::become(Container& container, Shape shape, std::size_t row) {
  if (container.row >= 0) {
    std::vector<Value>& left = items_[static_cast<std::size_t>(container.row)];
    if (left.capacity() > 1024) {
      items_bytes_ -= left.capacity() * sizeof(Value);
      std::vector<Value>().swap(left);
    }
    left.clear();
    idle_.push_back(container.row);
  }
  container.shape = shape;
  container.row = static_cast<std::int64_t>(row);
}

// The container just below `above` on the stack, to be added to.
Container& Pickle::target(Kind kind, std::size_t above) {
  if (above <= (marks_.empty() ? 0 : marks_.back())) fail("it uses a value that does not exist");
  const Value& value = stack_[above - 1];
  if (value.kind != kind)
    fail(kind == Kind::DICT ? "it adds a key to a value that is not a dictionary"
                            : "it appends to a value that is not a list");
  Container& found = containers_[static_cast<std::size_t>(value.number)];
  if (found.shape != Shape::PLAIN) fail("it changes a completed value");
  return found;
}

// A dictionary that came key by key is complete when it is put somewhere.
void Pickle::settle(const Value& value) {
  if (value.kind != Kind::DICT) return;
  Container& found = containers_[static_cast<std::size_t>(value.number)];
  if (!found.is_piecewise) return;
  found.is_piecewise = false;
  found.is_nothing = !look_at_dictionary(found, items(found).data(), items(found).size());
}

// Whoever writes counts what is kept, and each takes a byte at least: no number is larger than the file.
void Pickle::remember(std::size_t at) {
  if (at == memo_.size()) return memo_.push_back(top());
  if (at >= data_.size()) fail("it stores a value under a number that is too large");
  if (at >= memo_.size()) memo_.resize(at + 1, {Kind::MARK, 0});
  memo_[at] = top();
}

void Pickle::recall(std::size_t at) {
  if (at >= memo_.size() || memo_[at].kind == Kind::MARK) fail("it refers to a value that was never stored");
  stack_.push_back(memo_[at]);
}

// ---- the machine

std::size_t Pickle::made_bytes() const {
  constexpr std::size_t HEAP = 16;  // what the heap keeps in addition to each piece
  const std::size_t columns = 9 * entries.action.capacity() + 3 * frames.name.capacity() + stack_starts.capacity() +
                              stack_frames.capacity() + marks_.capacity() + reals_.capacity();
  return (stack_.capacity() + memo_.capacity()) * sizeof(Value) + containers_.size() * sizeof(Container) +
         items_.size() * (sizeof(std::vector<Value>) + HEAP) + items_bytes_ + texts_bytes_ +
         columns * sizeof(std::int64_t) + stack_ids_.size() * 96;
}

void Pickle::check_made() const {
  if (made_bytes() > most_made_bytes())
    fail("it would take many times its own size in memory, which is not the case for a snapshot,");
}

void Pickle::run() {
  for (std::size_t steps = 0;; ++steps) {
    if (steps % STEPS_BETWEEN_CHECKS == 0) check_made();
    if (at_ >= data_.size()) fail("it ends before it is complete");
    const auto opcode = static_cast<unsigned char>(data_[at_++]);
    if (opcode == '.') break;
    step(opcode);
  }
  check_made();
  if (!marks_.empty() || stack_.size() != 1) fail("it does not end with exactly one value");
  root_ = stack_.back();
}

void Pickle::step(unsigned char opcode) {
  const auto above_mark = [&] {
    const std::size_t from = mark();
    marks_.pop_back();
    return from;
  };
  switch (opcode) {
    case 0x80:  // PROTO
      if (number<std::uint8_t>() > 5) fail("it uses a pickle protocol newer than 5");
      return;
    case 0x95: return static_cast<void>(take(8));  // FRAME
    case '(': return marks_.push_back(stack_.size());
    case '0': return static_cast<void>(pop());
    case '1': return stack_.resize(above_mark());
    case '2': return stack_.push_back(Value(top()));
    case 'N': return push(Kind::NONE, 0);
    case 0x88: return push(Kind::BOOL, 1);
    case 0x89: return push(Kind::BOOL, 0);
    case 'I':
    case 'L': return push_decimal(line());
    case 'J': return push(Kind::INT, static_cast<std::int32_t>(number<std::uint32_t>()));
    case 'K': return push(Kind::INT, number<std::uint8_t>());
    case 'M': return push(Kind::INT, number<std::uint16_t>());
    case 0x8a: return push_integer(take(number<std::uint8_t>()));
    case 0x8b: return push_integer(take(length<std::uint32_t>()));
    case 'F': return push_real(std::strtod(std::string(line()).c_str(), nullptr));
    case 'G': {
      std::uint64_t bits = __builtin_bswap64(number<std::uint64_t>());
      double value;
      std::memcpy(&value, &bits, sizeof value);
      return push_real(value);
    }
    case 'S': return push_text(line());
    case 'V': return push_text(unescaped(line()));
    case 'U':
    case 0x8c: return push_text(take(length<std::uint8_t>()));
    case 'T':
    case 'X': return push_text(take(length<std::uint32_t>()));
    case 0x8d: return push_text(take(length<std::uint64_t>()));
    case 'C': return push_text(take(length<std::uint8_t>()), Kind::BYTES);
    case 'B': return push_text(take(length<std::uint32_t>()), Kind::BYTES);
    case 0x8e: return push_text(take(length<std::uint64_t>()), Kind::BYTES);
    case ']': return push_container(Kind::LIST, stack_.size());
    case '}': return push_container(Kind::DICT, stack_.size());
    case ')': return push_container(Kind::TUPLE, stack_.size());
    case 'l': return push_container(Kind::LIST, above_mark());
    case 'd': return push_container(Kind::DICT, above_mark());
    case 't': return push_container(Kind::TUPLE, above_mark());
    case 0x85:
    case 0x86:
    case 0x87: {
      const std::size_t wanted = opcode - 0x84u, floor = marks_.empty() ? 0 : marks_.back();
      if (stack_.size() < floor + wanted) fail("it uses a value that does not exist");
      return push_container(Kind::TUPLE, stack_.size() - wanted);
    }
    case 'a': {
      const Value item = pop();
      settle(item);
      return add(target(Kind::LIST, stack_.size()), &item, 1);
    }
    case 'e': {
      const std::size_t from = above_mark();
      add(target(Kind::LIST, from), stack_.data() + from, stack_.size() - from);
      return stack_.resize(from);
    }
    case 's': {
      const Value value = pop(), item[] = {pop(), value};
      settle(value);
      Container& dictionary = target(Kind::DICT, stack_.size());
      dictionary.is_piecewise = !dictionary.is_nothing;
      return add(dictionary, item, 2);
    }
    case 'u': {
      const std::size_t from = above_mark(), count = stack_.size() - from;
      if (count % 2) fail("it contains a dictionary with a key without a value");
      Container& dictionary = target(Kind::DICT, from);
      const Value* added = stack_.data() + from;
      if (dictionary.row >= 0 || !look_at_dictionary(dictionary, added, count)) add(dictionary, added, count);
      return stack_.resize(from);
    }
    case 'p': {
      const std::string digits(line());
      return remember(std::strtoull(digits.c_str(), nullptr, 10));
    }
    case 'q': return remember(number<std::uint8_t>());
    case 'r': return remember(number<std::uint32_t>());
    case 0x94: return remember(memo_.size());
    case 'g': {
      const std::string digits(line());
      return recall(std::strtoull(digits.c_str(), nullptr, 10));
    }
    case 'h': return recall(number<std::uint8_t>());
    case 'j': return recall(number<std::uint32_t>());
    default: return refuse(opcode);
  }
}

// Everything that would name, make or call something. A snapshot has none of it.
void Pickle::refuse(unsigned char opcode) {
  const auto shown = [](std::string_view text) {
    std::string found(text.substr(0, 80));
    for (char& letter : found)
      if (letter < ' ' || letter > '~') letter = '?';
    return found;
  };
  switch (opcode) {
    case 'c':
    case 'i': {
      const std::string module = shown(line());
      fail("it refers to " + module + "." + shown(line()) + ", which a snapshot never does: it may run code");
    }
    case 0x93: {
      const Value name = pop(), module = pop();
      if (name.kind == Kind::TEXT && module.kind == Kind::TEXT)
        fail("it refers to " + shown(texts_[static_cast<std::size_t>(module.number)]) + "." +
             shown(texts_[static_cast<std::size_t>(name.number)]) + ", which a snapshot never does: it may run code");
      break;
    }
    case 'R':
    case 'o':
    case 'b':
    case 0x81:
    case 0x92:
    case 'P':
    case 'Q':
    case 0x82:
    case 0x83:
    case 0x84: break;
    case 0x8f:
    case 0x90:
    case 0x91:
    case 0x96:
    case 0x97:
    case 0x98: fail("it contains a kind of value that never occurs in a snapshot");
    default: fail("it contains bytes that are not a pickle");
  }
  fail("it calls a function, which a snapshot never does: it may run code");
}

}  // namespace ullage
