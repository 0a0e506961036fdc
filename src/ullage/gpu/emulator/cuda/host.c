/* The host's side of the GPU: pinned memory, and what is read back.
 *
 * A GPU computes nothing: what is read back is zero, unless the package ullage.gpu.values
 * has set it for the calling thread just before, or computes everything on the host (card_hold_values).
 */
#define _GNU_SOURCE
#include "../../tracing/journal/host.h"
#include "address.h"
#include "card.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
  if (room) host_note(HOST_PINNED, address, size);
  return room;
}

static bool unpin(const void *address, bool ours) {
  pthread_mutex_lock(&lock);
  size_t at = 0;
  while (at < pinned_count && !(pinned[at].address == address && pinned[at].ours == ours)) at++;
  bool found = at < pinned_count;
  if (found) pinned[at] = pinned[--pinned_count];
  pthread_mutex_unlock(&lock);
  if (found) host_forget(HOST_PINNED, address);
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

/* A real driver has every page of pinned memory there; here only those that were written are. */
static int64_t untouched_bytes(const struct pinned *one) {
  enum { PAGES = 1 << 12 };
  unsigned char is_there[PAGES];
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = (uint64_t)one->address & ~(page - 1);
  uint64_t end = ((uint64_t)one->address + one->size + page - 1) & ~(page - 1);
  int64_t bytes = 0;
  while (at < end) {
    size_t length = end - at < PAGES * page ? end - at : PAGES * page;
    if (mincore((void *)at, length, is_there) != 0) return bytes;
    for (size_t i = 0; i < length / page; i++) bytes += is_there[i] & 1 ? 0 : (int64_t)page;
    at += length;
  }
  return bytes;
}

int64_t card_pinned_untouched(void) {
  int64_t bytes = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < pinned_count; i++) bytes += untouched_bytes(&pinned[i]);
  pthread_mutex_unlock(&lock);
  return bytes;
}

/* ---- what is read back */

/* The number that every read of the calling thread is answered with: a count that an operator needs to size its result.
 * Numbers are stored from the lowest byte on, so that a read of 1, 4 or 8 bytes is the number in that size. */
static _Thread_local struct {
  bool given;
  int64_t number;
} answer;

void card_answer(bool given, int64_t number) { answer.given = given, answer.number = number; }
bool card_answered(int64_t *out) {
  if (answer.given) *out = answer.number;
  return answer.given;
}

/* Zeros in pinned memory of ours need no pages: existing pages are freed, and the kernel returns zeros when
 * they are read. What is saved on the host for the backward pass would otherwise be written, byte by byte, in every step. */
enum { LARGE_READ = 1 << 16 };

static bool is_ours(const char *address, size_t size) {
  pthread_mutex_lock(&lock);
  bool found = false;
  for (size_t i = 0; i < pinned_count && !found; i++)
    found = pinned[i].ours && address >= pinned[i].address && address + size <= pinned[i].address + pinned[i].size;
  pthread_mutex_unlock(&lock);
  return found;
}

static void make_zero(char *destination, size_t size) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = (uint64_t)destination, end = begin + size;
  uint64_t first = (begin + page - 1) & ~(page - 1), last = end & ~(page - 1);
  bool is_given_back = size >= LARGE_READ && first < last && is_ours(destination, size) &&
                       madvise((void *)first, last - first, MADV_DONTNEED) == 0;
  memset(destination, 0, is_given_back ? first - begin : size);
  if (is_given_back) memset((void *)last, 0, end - last);
}

static void read_back(void *destination, size_t size) {
  make_zero(destination, size);
  if (answer.given) memcpy(destination, &answer.number, size < sizeof answer.number ? size : sizeof answer.number);
}

/* While the calling thread runs an operator that the host computes, the GPU's own copies and fills leave memory alone: they
 * move what its kernels, which do not run, would have made. */
static _Thread_local bool leaves_memory;
void card_leave_memory(bool leaves) { leaves_memory = leaves; }

static bool is_written(const void *destination) {
  return card_device_of((uint64_t)destination) < 0 || (card_holds_values() && !leaves_memory);
}

/* ---- what was sent last */

/* PyTorch makes tensors of Python's lists with all that watches its operations shut out: only the copy is to be seen. */
enum { SENT_MOST = 64 << 20 };
struct sent {
  uint64_t address;
  size_t size;
  char bytes[];
};
static atomic_bool remembers;
/* By who runs the copy: to keep all weights here as well takes longer than to send them. */
static _Thread_local bool sent_is_noted;
void card_sent_is_noted(bool is_noted) { sent_is_noted = is_noted; }
static pthread_key_t sent_key; /* each thread's own, freed with the thread */
static pthread_once_t sent_once = PTHREAD_ONCE_INIT;

/* What is remembered is ours, and not the run's: the peak of resident memory is reported without it. The kernel says
 * how much that was, but not when, so it is asked before and after whatever large is remembered. */
enum { NOTED_SENT = 1 << 20 };
static struct {
  int64_t now;             /* bytes that are remembered */
  int64_t high, of_high;   /* the kernel's figure, as last seen, and what of it was remembered then */
  int64_t resident_before; /* the most that was resident when something was about to be remembered */
} ours;
static pthread_mutex_t ours_lock = PTHREAD_MUTEX_INITIALIZER;

static void read_resident(int64_t *high, int64_t *now) {
  char text[4096], *at;
  *high = *now = 0;
  int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  text[length > 0 ? length : 0] = 0;
  if ((at = strstr(text, "VmHWM:"))) *high = strtoll(at + sizeof "VmHWM:", NULL, 10) << 10;
  if ((at = strstr(text, "VmRSS:"))) *now = strtoll(at + sizeof "VmRSS:", NULL, 10) << 10;
}

static void note_ours(int64_t change) {
  if (change < NOTED_SENT && change > -NOTED_SENT) return;
  int64_t high, now;
  read_resident(&high, &now);
  pthread_mutex_lock(&ours_lock);
  if (high > ours.high) ours.high = high, ours.of_high = ours.now;
  take_larger(&ours.resident_before, now - ours.now);
  ours.now += change;
  pthread_mutex_unlock(&ours_lock);
}

void card_sent_at_high(int64_t high, int64_t *of_high, int64_t *resident_before) {
  pthread_mutex_lock(&ours_lock);
  if (high > ours.high) ours.high = high, ours.of_high = ours.now;
  *of_high = ours.of_high, *resident_before = ours.resident_before;
  pthread_mutex_unlock(&ours_lock);
}

static void forget_sent(void *sent) {
  if (sent) note_ours(-(int64_t)((struct sent *)sent)->size);
  free(sent);
}

static void make_sent_key(void) { pthread_key_create(&sent_key, forget_sent); }

void card_remember_sent(bool on) {
  pthread_once(&sent_once, make_sent_key);
  atomic_store(&remembers, on);
}

static void remember(const void *destination, const void *source, size_t size) {
  forget_sent(pthread_getspecific(sent_key));
  bool is_kept = size <= SENT_MOST && !sent_is_noted;
  if (is_kept) note_ours((int64_t)size);
  struct sent *sent = is_kept ? malloc(sizeof *sent + size) : NULL;
  if (sent) {
    sent->address = (uint64_t)destination, sent->size = size;
    memcpy(sent->bytes, source, size);
  }
  pthread_setspecific(sent_key, sent);
}

bool card_take_sent(uint64_t address, size_t size, void *out) {
  if (!atomic_load(&remembers)) return false;
  struct sent *sent = pthread_getspecific(sent_key);
  bool found = sent && sent->address == address && sent->size == size;
  if (found) memcpy(out, sent->bytes, size);
  forget_sent(sent);
  pthread_setspecific(sent_key, NULL);
  return found;
}

/* ---- writes of threads that are not watched */

static _Atomic(thread_is_seen) is_seen;
static atomic_int seen_key;
_Atomic uint64_t card_unseen_writes;

void card_watch_writes(thread_is_seen function, uint16_t key) {
  atomic_store(&seen_key, key);
  atomic_store(&is_seen, function);
}

void card_note_write(void) {
  thread_is_seen function = atomic_load_explicit(&is_seen, memory_order_relaxed);
  if (function && !function((uint16_t)atomic_load(&seen_key))) atomic_fetch_add(&card_unseen_writes, 1);
}

void card_copy(void *destination, const void *source, size_t size) {
  bool to_card = card_device_of((uint64_t)destination) >= 0, from_card = card_device_of((uint64_t)source) >= 0;
  if (to_card && size) card_note_write();
  if (to_card && !from_card && size && atomic_load(&remembers)) remember(destination, source, size);
  if (size == 0 || destination == source || !is_written(destination)) return;
  bool is_read_back = from_card && (!card_holds_values() || answer.given);
  if (is_read_back) read_back(destination, size);
  else memmove(destination, source, size);
}

void card_fill(void *destination, int value, size_t size) {
  card_note_write();
  if (is_written(destination)) memset(destination, value, size);
}
