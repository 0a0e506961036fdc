#define _GNU_SOURCE
#include "journal.h"
#include "stacks.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Entries live in chunks, so that growing never moves or copies what is there. */
enum { CHUNK_ENTRIES = 1 << 14, CHUNKS = 1 << 16 };

static struct journal_entry *chunks[CHUNKS];
static uint64_t length, lost;
static atomic_bool is_open;
static atomic_uint_least16_t phase;
static atomic_uint_least32_t module;
static pthread_t opener;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(journal_read_callback) read_callback;

struct journal_recent journal_recent[JOURNAL_RECENT];
_Atomic uint64_t journal_recent_count;
static pthread_mutex_t recent_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- symbols of torch, looked up when torch is there: the journal itself needs no torch */

typedef void (*memory_reporter)(void *, int64_t, size_t, size_t, uint16_t);
typedef void (*oom_reporter)(int64_t, size_t, size_t, uint16_t);
typedef bool (*grad_mode_reader)(void);

static struct {
  memory_reporter memory;
  oom_reporter oom;
  grad_mode_reader grad_mode;
} torch_side;
static pthread_once_t torch_once = PTHREAD_ONCE_INIT;

static void find_torch_side(void) {
  void *c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!c10) return;
  torch_side.memory = (memory_reporter)dlsym(c10, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
  torch_side.oom = (oom_reporter)dlsym(c10, "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");
  torch_side.grad_mode = (grad_mode_reader)dlsym(c10, "_ZN3c108GradMode10is_enabledEv");
}

/* ---- writing */

static uint64_t append(struct journal_entry entry) {
  pthread_mutex_lock(&lock);
  uint64_t index = length;
  uint64_t chunk = index / CHUNK_ENTRIES;
  if (chunk < CHUNKS && !chunks[chunk]) chunks[chunk] = malloc(sizeof(struct journal_entry) * CHUNK_ENTRIES);
  if (chunk >= CHUNKS || !chunks[chunk]) {
    lost++;
  } else {
    chunks[chunk][index % CHUNK_ENTRIES] = entry;
    length++;
  }
  pthread_mutex_unlock(&lock);
  return index;
}

static uint16_t current_flags(void) {
  uint16_t flags = 0;
  if (torch_side.grad_mode && torch_side.grad_mode()) flags |= 1;
  if (!pthread_equal(pthread_self(), opener)) flags |= 2;
  return flags;
}

static uint64_t append_now(uint16_t kind, uint64_t address, int64_t size, int64_t allocated, int64_t reserved,
                           int device) {
  return append((struct journal_entry){.address = address,
                                       .size = size,
                                       .allocated = allocated,
                                       .reserved = reserved,
                                       .kind = kind,
                                       .device = (int16_t)device,
                                       .phase = atomic_load(&phase),
                                       .flags = current_flags(),
                                       .stack = kind == JOURNAL_ALLOC ? stacks_here() : 0,
                                       .module = pthread_equal(pthread_self(), opener) ? atomic_load(&module) : 0});
}

/* c10::Device is two bytes, passed in one register: type, index. */
enum { DEVICE_TYPE_CUDA = 1 };
static int device_type(uint16_t device) { return device & 0xff; }
static int device_index(uint16_t device) { return (int8_t)(device >> 8); }

/* c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device); alloc_size < 0: a free. */
ULLAGE_API void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *address, int64_t size, size_t allocated,
                                                                      size_t reserved, uint16_t device) {
  pthread_once(&torch_once, find_torch_side);
  if (atomic_load(&is_open) && device_type(device) == DEVICE_TYPE_CUDA)
    append_now(size < 0 ? JOURNAL_FREE : JOURNAL_ALLOC, (uint64_t)address, size < 0 ? -size : size, (int64_t)allocated,
               (int64_t)reserved, device_index(device));
  if (device_type(device) == DEVICE_TYPE_CUDA) {
    pthread_mutex_lock(&recent_lock); /* each card's allocator has a lock of its own */
    uint64_t number = atomic_load(&journal_recent_count);
    journal_recent[number % JOURNAL_RECENT] = (struct journal_recent){(uint64_t)address, size};
    atomic_store(&journal_recent_count, number + 1);
    pthread_mutex_unlock(&recent_lock);
  }
  if (torch_side.memory) torch_side.memory(address, size, allocated, reserved, device);
}

/* c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, Device) */
ULLAGE_API void _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(int64_t size, size_t allocated, size_t reserved,
                                                                    uint16_t device) {
  pthread_once(&torch_once, find_torch_side);
  if (atomic_load(&is_open) && device_type(device) == DEVICE_TYPE_CUDA)
    append_now(JOURNAL_OOM, 0, size, (int64_t)allocated, (int64_t)reserved, device_index(device));
  if (torch_side.oom) torch_side.oom(size, allocated, reserved, device);
}

void journal_workspace(const void *address, size_t size, int device) {
  if (address && atomic_load(&is_open)) append_now(JOURNAL_WORKSPACE, (uint64_t)address, (int64_t)size, 0, 0, device);
}

uint64_t journal_mark(uint64_t number) { return append_now(JOURNAL_MARK, number, 0, 0, 0, -1); }

void journal_set_phase(uint16_t value) { atomic_store(&phase, value); }

uint32_t journal_set_module(uint32_t value) { return atomic_exchange(&module, value); }

/* ---- values read back */

/* "_ZN2at4_ops7nonzero4callERKNS_6TensorE" -> "nonzero"; false for anything else. */
static bool aten_op(const char *symbol, char *name, size_t capacity) {
  static const char prefix[] = "_ZN2at4_ops";
  if (!symbol || strncmp(symbol, prefix, sizeof prefix - 1) != 0) return false;
  const char *text = symbol + sizeof prefix - 1;
  size_t size = 0;
  while (*text >= '0' && *text <= '9') size = size * 10 + (size_t)(*text++ - '0');
  if (size == 0 || size >= capacity || strlen(text) < size) return false;
  memcpy(name, text, size);
  name[size] = 0;
  return true;
}

/* dladdr walks through all symbols of a library, and torch's have hundreds of thousands: each return address is looked
 * up once. A slot that is taken by another address is simply looked up again. */
enum { KNOWN_FRAMES = 1 << 13, OP_NAME = 96 };
static struct known_frame {
  const void *address;
  char op[OP_NAME]; /* empty: not an operator */
} known_frames[KNOWN_FRAMES];
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static void op_of_frame(const void *address, char *op) {
  struct known_frame *known = &known_frames[((uintptr_t)address >> 2) % KNOWN_FRAMES];
  pthread_mutex_lock(&known_lock);
  if (known->address != address) {
    Dl_info info;
    known->op[0] = 0;
    if (dladdr(address, &info) && info.dli_sname && !aten_op(info.dli_sname, known->op, sizeof known->op) &&
        strstr(info.dli_sname, "vision3ops3nms"))
      strcpy(known->op, "nms");
    known->address = address;
  }
  memcpy(op, known->op, OP_NAME);
  pthread_mutex_unlock(&known_lock);
}

enum { FRAMES = 96 };

void journal_value_read(size_t size) {
  journal_read_callback callback = atomic_load(&read_callback);
  if (!callback) return;
  enum { TEXT = 1024 };
  void *frames[FRAMES];
  int count = backtrace(frames, FRAMES);
  char ops[TEXT] = "", last[OP_NAME] = "";
  for (int i = count - 1; i >= 0; i--) {
    char name[OP_NAME];
    op_of_frame(frames[i], name);
    if (!*name) continue;
    if (strcmp(name, last) == 0 || strlen(ops) + strlen(name) + 2 > sizeof ops) continue;
    if (*ops) strcat(ops, ">");
    strcat(ops, name);
    strcpy(last, name);
  }
  callback(ops, size);
}

/* ---- the Python side */

void journal_open(void) {
  opener = pthread_self();
  atomic_store(&is_open, true);
}

void journal_close(void) {
  atomic_store(&is_open, false);
  atomic_store(&read_callback, NULL);
}

uint64_t journal_length(void) {
  pthread_mutex_lock(&lock);
  uint64_t now = length;
  pthread_mutex_unlock(&lock);
  return now;
}

uint64_t journal_lost(void) { return lost; }

uint64_t journal_read(uint64_t start, uint64_t count, struct journal_entry *out) {
  uint64_t end = journal_length(), done = 0;
  while (done < count && start + done < end) {
    uint64_t index = start + done, offset = index % CHUNK_ENTRIES;
    uint64_t part = CHUNK_ENTRIES - offset;
    if (part > count - done) part = count - done;
    if (part > end - index) part = end - index;
    memcpy(out + done, chunks[index / CHUNK_ENTRIES] + offset, part * sizeof *out);
    done += part;
  }
  return done;
}

void journal_set_read_callback(journal_read_callback callback) { atomic_store(&read_callback, callback); }
