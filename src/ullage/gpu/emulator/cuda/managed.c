/* Managed memory (cudaMallocManaged): real memory of the host, which the GPU may use too.
 *
 * On a real GPU a page moves to where it is touched. What kernels touch is not known here, so an allocation counts on the
 * GPU when it is prefetched to it, as far as memory is free, and until it is prefetched to the host, freed, or the GPU's
 * own allocations need the memory (the driver moves pages out then, the oldest first). Pages of the host are real only once
 * they are written to.
 */
#define _GNU_SOURCE
#include "address.h"
#include "card.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ADVISE_READ_MOSTLY = 1, UNSET_READ_MOSTLY = 2, SET_PREFERRED = 3, UNSET_PREFERRED = 4 };

static struct managed *items;
static size_t count, capacity;
static int64_t on_card[MAX_DEVICES], on_card_peak[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct managed *find(const void *address) {
  for (size_t i = 0; i < count; i++)
    if ((uint64_t)address >= items[i].base && (uint64_t)address - items[i].base < items[i].size) return &items[i];
  return NULL;
}

static void leave_card(struct managed *item, int64_t bytes) {
  if (item->device < 0) return;
  item->on_card_bytes -= bytes;
  on_card[item->device] -= bytes;
  if (!item->on_card_bytes) item->first = item->end = 0;
}

void *card_managed_allocate(size_t size) {
  void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return NULL;
  pthread_mutex_lock(&lock);
  bool room = list_grow((void **)&items, &capacity, count, sizeof *items);
  if (room) {
    items[count++] = (struct managed){.base = (uint64_t)address, .size = size, .device = -1, .preferred = -2};
  }
  pthread_mutex_unlock(&lock);
  if (room) return address;
  munmap(address, size);
  return NULL;
}

bool card_managed_free(const void *address) {
  pthread_mutex_lock(&lock);
  struct managed *item = find(address);
  bool found = item && item->base == (uint64_t)address;
  size_t size = found ? item->size : 0;
  if (found) {
    leave_card(item, item->on_card_bytes);
    memmove(item, item + 1, (size_t)(items + --count - item) * sizeof *item); /* the oldest stays first */
  }
  pthread_mutex_unlock(&lock);
  if (found) munmap((void *)address, size);
  return found;
}

bool card_managed_of(const void *address, struct managed *out) {
  if (!count) return false;
  pthread_mutex_lock(&lock);
  struct managed *item = find(address);
  if (item && out) *out = *item;
  pthread_mutex_unlock(&lock);
  return item != NULL;
}

bool card_managed_prefetch(const void *address, size_t size, int device) {
  int64_t room = device >= 0 ? card_free_bytes(device) / (int64_t)PAGE_BYTES * (int64_t)PAGE_BYTES : 0;
  pthread_mutex_lock(&lock);
  struct managed *item = find(address);
  bool found = item && (uint64_t)address - item->base + size <= item->size && device < card_count();
  if (found && device != item->device) {
    leave_card(item, item->on_card_bytes);
    item->device = device;
  }
  if (found && device >= 0) {
    uint64_t offset = (uint64_t)address - item->base; /* what was prefetched before is not counted again */
    bool is_first = item->first == item->end;
    if (is_first || offset < item->first) item->first = offset;
    if (is_first || offset + size > item->end) item->end = offset + size;
    uint64_t pages =
        (item->end + PAGE_BYTES - 1) / PAGE_BYTES - item->first / PAGE_BYTES; /* the GPU's pages are 2 MiB */
    int64_t wanted = (int64_t)(pages * PAGE_BYTES) - item->on_card_bytes;
    if (wanted > room) wanted = room;
    if (wanted < 0) wanted = 0;
    item->on_card_bytes += wanted;
    on_card[device] += wanted;
    take_larger(&on_card_peak[device], on_card[device]);
  } else if (found) {
    item->device = -1;
  }
  pthread_mutex_unlock(&lock);
  if (found && device >= 0) card_note_peak(device);
  return found;
}

bool card_managed_advise(const void *address, int advice, int device) {
  pthread_mutex_lock(&lock);
  struct managed *item = find(address);
  if (item && advice == ADVISE_READ_MOSTLY) item->read_mostly = true;
  if (item && advice == UNSET_READ_MOSTLY) item->read_mostly = false;
  if (item && advice == SET_PREFERRED) item->preferred = device;
  if (item && advice == UNSET_PREFERRED) item->preferred = -2;
  pthread_mutex_unlock(&lock);
  return item != NULL;
}

int64_t card_managed_fit(int device, int64_t room) {
  if (!on_card[device]) return 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count && on_card[device] > room; i++) {
    if (items[i].device != device) continue;
    int64_t over = on_card[device] - room;
    leave_card(&items[i], over < items[i].on_card_bytes ? over : items[i].on_card_bytes);
  }
  int64_t stays = on_card[device];
  pthread_mutex_unlock(&lock);
  return stays;
}

int64_t card_managed_on_card(int device) { return on_card[device]; }
int64_t card_managed_peak_on_card(int device) { return on_card_peak[device]; }
