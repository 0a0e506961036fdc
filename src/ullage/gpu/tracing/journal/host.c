#define _GNU_SOURCE
#include "host.h"
#include "stacks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1 << 8, MOST_USES = 1 << 14 /* stacks that are told apart; what others asked for goes to none */ };

/* A piece of memory that is there; address 0: the slot is free. */
struct piece {
  uint64_t address;
  int64_t size;
  uint32_t use;
};

/* Pieces by address, in open addressing; uses by stack, in the order in which they were met: [0] is of no known stack. */
struct ledger {
  struct piece *pieces;
  uint32_t slots, count;
  struct host_use *uses, *at_peak;
  uint32_t use_count, use_room, peak_count;
  int64_t bytes, peak_bytes;
  bool is_at_peak; /* nothing was given back since the peak: what is there is what was there then */
};

static struct ledger ledgers[HOST_KINDS];
static atomic_bool is_open;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* How many pieces there are by a few bits of their addresses: most memory that is given back is none of ours, and that is
 * seen without the lock. */
enum { BUCKETS = 1 << 14 };
static atomic_uint_least32_t buckets[BUCKETS];

static uint64_t hash_of(uint64_t address) { return (address >> 4) * 0x9e3779b97f4a7c15u; }
static atomic_uint_least32_t *bucket_of(uint64_t address) { return &buckets[hash_of(address) >> 50]; }

/* ---- pieces */

static struct piece *slot_of(const struct ledger *ledger, uint64_t address) {
  uint32_t mask = ledger->slots - 1;
  for (uint32_t i = (uint32_t)(hash_of(address) >> 32) & mask;; i = (i + 1) & mask)
    if (!ledger->pieces[i].address || ledger->pieces[i].address == address) return &ledger->pieces[i];
}

static bool make_room(struct ledger *ledger) {
  if (ledger->slots && ledger->count * 2 < ledger->slots) return true;
  struct ledger larger = *ledger;
  larger.slots = ledger->slots ? ledger->slots * 2 : FIRST_SLOTS;
  larger.pieces = calloc(larger.slots, sizeof *larger.pieces);
  if (!larger.pieces) return false;
  for (uint32_t i = 0; i < ledger->slots; i++)
    if (ledger->pieces[i].address) *slot_of(&larger, ledger->pieces[i].address) = ledger->pieces[i];
  free(ledger->pieces);
  *ledger = larger;
  return true;
}

/* Empties a slot; what stands behind it moves up, so that no search ends too early. */
static void empty(struct ledger *ledger, struct piece *slot) {
  uint32_t mask = ledger->slots - 1, hole = (uint32_t)(slot - ledger->pieces);
  for (uint32_t i = (hole + 1) & mask; ledger->pieces[i].address; i = (i + 1) & mask) {
    uint32_t home = (uint32_t)(hash_of(ledger->pieces[i].address) >> 32) & mask;
    if (((i - home) & mask) >= ((i - hole) & mask)) ledger->pieces[hole] = ledger->pieces[i], hole = i;
  }
  ledger->pieces[hole] = (struct piece){0};
  ledger->count--;
}

/* ---- uses */

static bool make_use_room(struct ledger *ledger) {
  if (ledger->use_count < ledger->use_room) return true;
  uint32_t room = ledger->use_room ? ledger->use_room * 2 : 64;
  struct host_use *uses = realloc(ledger->uses, room * sizeof *uses);
  if (uses) ledger->uses = uses;
  struct host_use *at_peak = realloc(ledger->at_peak, room * sizeof *at_peak);
  if (at_peak) ledger->at_peak = at_peak;
  if (!uses || !at_peak) return false;
  if (!ledger->use_count) ledger->uses[ledger->use_count++] = (struct host_use){0};
  ledger->use_room = room;
  return true;
}

static uint32_t use_of(struct ledger *ledger, uint32_t stack) {
  if (!stack) return 0;
  for (uint32_t i = ledger->use_count; i-- > 1;) /* a stack that asks comes again soon */
    if (ledger->uses[i].stack == stack) return i;
  if (ledger->use_count >= MOST_USES || !make_use_room(ledger)) return 0;
  ledger->uses[ledger->use_count] = (struct host_use){.stack = stack};
  return ledger->use_count++;
}

static void keep_peak(struct ledger *ledger) {
  if (!ledger->is_at_peak) return;
  memcpy(ledger->at_peak, ledger->uses, ledger->use_count * sizeof *ledger->uses);
  ledger->peak_count = ledger->use_count;
}

static void count_piece(struct ledger *ledger, const struct piece *piece, int sign) {
  ledger->bytes += sign * piece->size;
  ledger->uses[piece->use].bytes += sign * piece->size;
  ledger->uses[piece->use].blocks += (uint32_t)sign;
}

/* ---- what happens */

static void give_back(struct ledger *ledger, struct piece *slot) {
  keep_peak(ledger);
  ledger->is_at_peak = false;
  count_piece(ledger, slot, -1);
  atomic_fetch_sub(bucket_of(slot->address), 1);
  empty(ledger, slot);
}

void host_note(enum host_kind kind, const void *address, size_t size) {
  if (!address || !atomic_load(&is_open)) return;
  uint32_t stack = stacks_here();
  struct ledger *ledger = &ledgers[kind];
  pthread_mutex_lock(&lock);
  if (make_room(ledger) && (ledger->use_count || make_use_room(ledger))) {
    struct piece *slot = slot_of(ledger, (uint64_t)address);
    if (slot->address) give_back(ledger, slot); /* whoever gave it back went another way */
    slot = slot_of(ledger, (uint64_t)address);
    *slot = (struct piece){.address = (uint64_t)address, .size = (int64_t)size, .use = use_of(ledger, stack)};
    ledger->count++;
    atomic_fetch_add(bucket_of((uint64_t)address), 1);
    count_piece(ledger, slot, 1);
    if (ledger->bytes > ledger->peak_bytes) ledger->peak_bytes = ledger->bytes, ledger->is_at_peak = true;
  }
  pthread_mutex_unlock(&lock);
}

void host_forget(enum host_kind kind, const void *address) {
  if (!address || !atomic_load(&is_open) || !atomic_load(bucket_of((uint64_t)address))) return;
  struct ledger *ledger = &ledgers[kind];
  pthread_mutex_lock(&lock);
  struct piece *slot = ledger->slots ? slot_of(ledger, (uint64_t)address) : NULL;
  if (slot && slot->address) give_back(ledger, slot);
  pthread_mutex_unlock(&lock);
}

/* ---- the CPU's tensors */

static struct {
  void *(*allocate)(size_t);
  void (*release)(void *);
} c10;
static pthread_once_t c10_once = PTHREAD_ONCE_INIT;

static void find_c10(void) {
  void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return;
  *(void **)&c10.allocate = dlsym(library, "_ZN3c109alloc_cpuEm");
  *(void **)&c10.release = dlsym(library, "_ZN3c108free_cpuEPv");
}

/* void *c10::alloc_cpu(size_t), which throws where there is no memory */
ULLAGE_API void *_ZN3c109alloc_cpuEm(size_t size) {
  pthread_once(&c10_once, find_c10);
  void *address = c10.allocate(size);
  if (size >= HOST_LEAST) host_note(HOST_TENSORS, address, size);
  return address;
}

/* void c10::free_cpu(void *). Forgotten before it is given back: another thread may get the address at once. */
ULLAGE_API void _ZN3c108free_cpuEPv(void *address) {
  pthread_once(&c10_once, find_c10);
  host_forget(HOST_TENSORS, address);
  c10.release(address);
}

/* ---- NumPy's arrays */

static struct numpy_allocator numpys; /* its own functions */

static void *note_array(void *address, size_t size) {
  if (size >= HOST_LEAST) host_note(HOST_ARRAYS, address, size);
  return address;
}

static void *allocate_array(void *context, size_t size) { return note_array(numpys.allocate(context, size), size); }

static void *allocate_zeros(void *context, size_t count, size_t size) { /* numbers whose product is a size */
  return note_array(numpys.allocate_zeros(context, count, size), count * size);
}

static void *reallocate_array(void *context, void *address, size_t size) {
  host_forget(HOST_ARRAYS, address);
  return note_array(numpys.reallocate(context, address, size), size);
}

static void release_array(void *context, void *address, size_t size) {
  host_forget(HOST_ARRAYS, address);
  numpys.release(context, address, size);
}

void host_watch_arrays(struct numpy_allocator *theirs) {
  if (numpys.allocate) return;
  numpys = *theirs;
  *theirs = (struct numpy_allocator){theirs->context, allocate_array, allocate_zeros, reallocate_array, release_array};
}

/* ---- the Python side */

static void take_lock(void) { pthread_mutex_lock(&lock); }
static void leave_lock(void) { pthread_mutex_unlock(&lock); }
static void end_in_fork(void) { /* a worker's memory is its own, and the lock is not taken there any more */
  atomic_store(&is_open, false);
  pthread_mutex_unlock(&lock);
}
static void watch_forks(void) { pthread_atfork(take_lock, leave_lock, end_in_fork); }

void host_open(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  atomic_store(&is_open, true);
}

void host_close(void) { atomic_store(&is_open, false); }

int64_t host_bytes(int kind) {
  pthread_mutex_lock(&lock);
  int64_t bytes = ledgers[kind].bytes;
  pthread_mutex_unlock(&lock);
  return bytes;
}

int64_t host_peak_bytes(int kind) {
  pthread_mutex_lock(&lock);
  int64_t bytes = ledgers[kind].peak_bytes;
  pthread_mutex_unlock(&lock);
  return bytes;
}

int64_t host_own_bytes(void) {
  int64_t bytes = 0;
  pthread_mutex_lock(&lock);
  for (int kind = 0; kind < HOST_KINDS; kind++)
    bytes +=
        (int64_t)(ledgers[kind].slots * sizeof(struct piece) + ledgers[kind].use_room * 2 * sizeof(struct host_use));
  pthread_mutex_unlock(&lock);
  return bytes;
}

bool host_use_at_peak(int kind, uint32_t index, struct host_use *out) {
  struct ledger *ledger = &ledgers[kind];
  pthread_mutex_lock(&lock);
  keep_peak(ledger);
  bool is_there = index < ledger->peak_count;
  if (is_there) *out = ledger->at_peak[index];
  pthread_mutex_unlock(&lock);
  return is_there;
}
