/* The host's side of the card: pinned memory, and the few values that come back from the card.
 *
 * A card computes nothing, so what is read back is zero, with three exceptions that real scripts need:
 *   - bytes that the host wrote come back while few kernels ran since (DDP's parameter check, object collectives);
 *   - the largest of such whole numbers is what it is (`lengths.max().item()`, PyTorch 2.15's object collectives);
 *   - the one byte of `mask.all()` reads true, so that an attention mask of ones counts as one. Not where PyTorch makes
 *     it of one element of whole numbers (uint8), which runs no kernel of its own.
 */
#define _GNU_SOURCE
#include "address.h"
#include "card.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../tracing/journal/journal.h"

/* ---- pinned memory */

struct pinned {
  const char *address;
  size_t size;
  bool ours; /* allocated here, not only registered */
};
static struct pinned *pinned;
static size_t pinned_count, pinned_capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool pin(void *address, size_t size, bool ours) {
  pthread_mutex_lock(&lock);
  bool room = list_grow((void **)&pinned, &pinned_capacity, pinned_count, sizeof *pinned);
  if (room) pinned[pinned_count++] = (struct pinned){address, size, ours};
  pthread_mutex_unlock(&lock);
  return room;
}

static bool unpin(const void *address, bool ours) {
  pthread_mutex_lock(&lock);
  size_t at = 0;
  while (at < pinned_count && !(pinned[at].address == address && pinned[at].ours == ours)) at++;
  bool found = at < pinned_count;
  if (found) pinned[at] = pinned[--pinned_count];
  pthread_mutex_unlock(&lock);
  return found;
}

void *card_pin_allocate(size_t size) {
  void *address = NULL;
  if (posix_memalign(&address, 4096, size ? size : 1) != 0) return NULL;
  if (pin(address, size, true)) return address;
  free(address);
  return NULL;
}

bool card_pin_free(void *address) {
  bool found = unpin(address, true);
  if (found) free(address);
  return found;
}

bool card_pin_register(void *address, size_t size) { return address && pin(address, size, false); }
bool card_pin_unregister(void *address) { return unpin(address, false); }

bool card_is_pinned(const void *address) {
  pthread_mutex_lock(&lock);
  bool found = false;
  for (size_t i = 0; i < pinned_count && !found; i++)
    found = (const char *)address >= pinned[i].address && (const char *)address < pinned[i].address + pinned[i].size;
  pthread_mutex_unlock(&lock);
  return found;
}

/* ---- values that come back */

/* Comparing the sizes that 1,000 ranks have sent takes 1,000 kernels before the first is read. */
enum { ECHOES = 4096, ECHO_LAUNCHES = 4096 };
static const size_t ECHO_BYTES = (size_t)1 << 20; /* larger copies are data, not messages */
struct echo {
  uint64_t address;
  size_t size;
  uint64_t launch; /* how many kernels had run when it was written */
  char *bytes;
};
static struct echo echoes[ECHOES]; /* the first echo_count are alive, and do not overlap */
static int echo_count;
static size_t echo_bytes;
static const size_t ECHO_BYTES_ALL = (size_t)64 << 20;

static void drop(int index) {
  echo_bytes -= echoes[index].size;
  free(echoes[index].bytes);
  echoes[index] = echoes[--echo_count];
}
static int oldest(void) {
  int found = 0;
  for (int i = 1; i < echo_count; i++)
    if (echoes[i].launch < echoes[found].launch) found = i;
  return found;
}

/* Drop what was written in [address, address + size), and what is too old. */
static void forget(uint64_t address, size_t size) {
  uint64_t now = card_launches();
  for (int i = 0; i < echo_count;) {
    struct echo *echo = &echoes[i];
    bool is_elsewhere = echo->address >= address + size || echo->address + echo->size <= address;
    if (is_elsewhere && now - echo->launch <= ECHO_LAUNCHES) {
      i++;
      continue;
    }
    drop(i);
  }
}

/* A block that PyTorch frees and hands out again must not read as what its last owner was given. */
static void freed(uint64_t address, size_t size) {
  pthread_mutex_lock(&lock);
  forget(address, size);
  pthread_mutex_unlock(&lock);
}

static void remember(uint64_t address, const void *bytes, size_t size) {
  journal_set_free_callback(freed);
  char *copy = malloc(size);
  if (!copy) return;
  memcpy(copy, bytes, size);
  while (echo_count == ECHOES || (echo_count && echo_bytes + size > ECHO_BYTES_ALL)) drop(oldest());
  echo_bytes += size;
  echoes[echo_count++] = (struct echo){address, size, card_launches(), copy};
}

/* The bytes last written at [address, address + size), zero where nothing recent is known. */
static bool recall(uint64_t address, void *out, size_t size) {
  bool known = false;
  for (int i = 0; i < echo_count; i++) {
    struct echo *echo = &echoes[i];
    if (card_launches() - echo->launch > ECHO_LAUNCHES) continue;
    uint64_t low = address > echo->address ? address : echo->address;
    uint64_t high = address + size < echo->address + echo->size ? address + size : echo->address + echo->size;
    if (low >= high) continue;
    if (!known) memset(out, 0, size);
    memcpy((char *)out + (low - address), echo->bytes + (low - echo->address), high - low);
    known = true;
  }
  return known;
}

static void read_back(void *destination, uint64_t source, size_t size) {
  pthread_mutex_lock(&lock);
  bool known = recall(source, destination, size);
  pthread_mutex_unlock(&lock);
  if (known) return;
  memset(destination, 0, size);
  const char *kernel = size == 1 ? card_last_kernel_name() : NULL;
  /* The mangled name, with its length: logical_and_kernel_cuda is another. */
  if (kernel && strstr(kernel, "15and_kernel_cuda")) *(char *)destination = 1;
}

static void write_through(uint64_t destination, const void *source, size_t size) {
  pthread_mutex_lock(&lock);
  forget(destination, size);
  if (size <= ECHO_BYTES) remember(destination, source, size);
  pthread_mutex_unlock(&lock);
}

/* Of one element, PyTorch's `all()` is a copy of it and no reduction (ATen/native/ReduceOps.cpp, allany_impl, 2.8 to
 * 2.15), and `any()` is the same copy: only the operator that asked for it tells them apart. */
static bool is_all_of_one(size_t size) {
  static const char *const all[] = {"all", "all_dim", "all_dims", "all_out", "all_all_out", NULL};
  return size == 1 && journal_is_within(all);
}

static void copy_on_card(uint64_t destination, uint64_t source, size_t size) {
  char *bytes = size <= ECHO_BYTES ? malloc(size) : NULL;
  bool is_all = bytes && is_all_of_one(size);
  pthread_mutex_lock(&lock);
  bool known = bytes && recall(source, bytes, size);
  if (is_all && !known) {
    *bytes = 1;
    known = true;
  }
  forget(destination, size);
  if (known) remember(destination, bytes, size);
  pthread_mutex_unlock(&lock);
  free(bytes);
}

/* The argument is PyTorch's ReduceOp<int64_t, ...>: an empty functor, the identity, a ReduceConfig that begins with the
 * element's size and the numbers of inputs and outputs, two offset calculators, and then the addresses of source and
 * destination (ATen/native/cuda/Reduce.cuh, the same from torch 2.8 to 2.15). */
void card_take_maximum(const void *reduction) {
  enum { CONFIG = 16, ADDRESSES_WITHIN = 2048, INPUTS = 1 << 16 };
  struct {
    int32_t element_bytes, inputs, outputs;
  } config;
  memcpy(&config, (const char *)reduction + CONFIG, sizeof config);
  if (config.element_bytes != sizeof(int64_t) || config.outputs != 1 || config.inputs < 1 || config.inputs > INPUTS)
    return;
  uint64_t address[2];
  bool found = false;
  for (size_t at = CONFIG; at < ADDRESSES_WITHIN && !found; at += sizeof *address) {
    memcpy(address, (const char *)reduction + at, sizeof address);
    found =
        card_device_of(address[0]) >= 0 && card_device_of(address[1]) >= 0; /* counts of the config may look like one */
  }
  size_t size = (size_t)config.inputs * sizeof(int64_t);
  int64_t *values = found ? malloc(size) : NULL;
  if (!values) return;
  pthread_mutex_lock(&lock);
  bool known = recall(address[0], values, size);
  forget(address[1], sizeof *values);
  if (known) {
    for (int i = 1; i < config.inputs; i++)
      if (values[i] > values[0]) values[0] = values[i];
    remember(address[1], values, sizeof *values);
  }
  pthread_mutex_unlock(&lock);
  free(values);
}

void card_copy(void *destination, const void *source, size_t size) {
  if (size == 0 || destination == source) return;
  bool to_card = card_device_of((uint64_t)destination) >= 0, from_card = card_device_of((uint64_t)source) >= 0;
  if (to_card && from_card) copy_on_card((uint64_t)destination, (uint64_t)source, size);
  else if (to_card) write_through((uint64_t)destination, source, size);
  else if (from_card) read_back(destination, (uint64_t)source, size);
  else memmove(destination, source, size);
}

void card_copy_times(void *destination, const void *source, size_t size, size_t times) {
  size_t whole = size * times;
  if (whole == 0) return;
  char *one = whole <= ECHO_BYTES ? malloc(size) : NULL, *all = one ? malloc(whole) : NULL;
  pthread_mutex_lock(&lock);
  bool known = all && recall((uint64_t)source, one, size);
  forget((uint64_t)destination, whole);
  if (known) {
    for (size_t i = 0; i < times; i++) memcpy(all + i * size, one, size);
    remember((uint64_t)destination, all, whole);
  }
  pthread_mutex_unlock(&lock);
  free(one);
  free(all);
}

void card_fill(void *destination, int value, size_t size) {
  if (card_device_of((uint64_t)destination) < 0) {
    memset(destination, value, size);
    return;
  }
  pthread_mutex_lock(&lock);
  forget((uint64_t)destination, size);
  pthread_mutex_unlock(&lock);
}
