/* The journal: everything that happened to device memory in this process, in order.
 *
 * PyTorch tells its profiler of every allocation and free (c10::reportMemoryUsageToProfiler). The journal is
 * loaded before torch and defines that function, so it sees each event while the allocator's lock is held: the
 * order is the allocator's own. It works on an emulated card and on a real one, keeps numbers only, and never
 * calls back into the allocator.
 */
#ifndef ULLAGE_JOURNAL_H
#define ULLAGE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ULLAGE_API __attribute__((visibility("default")))

enum journal_kind {
  JOURNAL_ALLOC = 1,     /* address, size = the block's bytes after rounding */
  JOURNAL_FREE = 2,      /* address, size */
  JOURNAL_OOM = 3,       /* size = what was asked for */
  JOURNAL_WORKSPACE = 4, /* address was handed to a library as its workspace; size = as the library was told */
  JOURNAL_MARK = 5,      /* address = a number that the Python side chose */
};

struct journal_entry {
  uint64_t address;
  int64_t size;
  int64_t allocated; /* bytes allocated on the device after the event */
  int64_t reserved;  /* bytes reserved on the device after the event */
  uint16_t kind;     /* enum journal_kind */
  int16_t device;
  uint16_t phase;  /* as set by journal_set_phase */
  uint16_t flags;  /* bit 0: grad mode was on; bit 1: not the thread that opened the journal */
  uint32_t stack;  /* of an allocation: the node of the Python stack that asked (see stacks.h); 0: none */
  uint32_t module; /* as set by journal_set_module */
};

/* Called when a value is read back from the card; ops: names of the ATen ops on the native stack, outermost
 * first, joined by '>'. */
typedef void (*journal_read_callback)(const char *ops, uint64_t bytes);

ULLAGE_API void journal_open(void);
ULLAGE_API void journal_close(void);
ULLAGE_API uint64_t journal_length(void);
/* Copies up to `count` entries from index `start` into `out`; returns how many. */
ULLAGE_API uint64_t journal_read(uint64_t start, uint64_t count, struct journal_entry *out);
/* Number of entries lost because the host had no memory for them. */
ULLAGE_API uint64_t journal_lost(void);
ULLAGE_API uint64_t journal_mark(uint64_t number);
ULLAGE_API void journal_set_phase(uint16_t phase);
/* Says in which module the opener's thread is; returns what was set before. Entries of other threads carry 0. */
ULLAGE_API uint32_t journal_set_module(uint32_t module);
ULLAGE_API void journal_set_read_callback(journal_read_callback callback);

/* The latest allocations and frees, whether or not the journal is open: number n is at n modulo JOURNAL_RECENT. Read without
 * a lock by who has seen `journal_recent_count` rise; who is JOURNAL_RECENT behind has lost some. */
enum { JOURNAL_RECENT = 1 << 16 };
struct journal_recent {
  uint64_t address;
  int64_t size; /* negative: it was freed */
};
extern ULLAGE_API struct journal_recent journal_recent[JOURNAL_RECENT];
extern ULLAGE_API _Atomic uint64_t journal_recent_count;

/* For the emulated libraries. */
ULLAGE_API void journal_workspace(const void *address, size_t size, int device);
ULLAGE_API void journal_value_read(size_t size);

#endif
