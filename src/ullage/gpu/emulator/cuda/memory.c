/* Device memory: pages counted against the GPU's size, and mapped into ranges of addresses (address.c).
 *
 * A range is allocated by cudaMalloc (with its own pages) or by cuMemAddressReserve (without; pages are mapped into
 * it later).
 */
#include "address.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct pages {
  int device;
  size_t size;
  int references; /* the handle itself, every mapping, every retain */
};
struct mapping {
  uint64_t address;
  size_t size;
  struct pages *pages;
};

struct mappings {
  struct mapping *item;
  size_t count, capacity;
};

static struct mappings mappings;
static int64_t used[MAX_DEVICES], peak[MAX_DEVICES]; /* without the context */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t *shown; /* where other processes read what is used of each GPU */

/* Before torch is loaded, or in a process that was just forked, where another thread may have held the lock. */
void card_show_use(int64_t *memory) { shown = memory; }

static void use(int device, int64_t size) {
  used[device] += size;
  if (shown) shown[device] = used[device];
}

static size_t round_up(size_t size) { return (size + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); }

static bool take_pages(int device, size_t size) {
  const struct card *card = card_get(device);
  int64_t room = card->figure[CARD_TOTAL_BYTES] - card->figure[CARD_CONTEXT_BYTES] - used[device];
  if (room < 0 || size > (uint64_t)room) return false;
  use(device, (int64_t)size);
  int64_t managed = card_managed_fit(device, room - (int64_t)size);
  take_larger(&peak[device], used[device] + managed);
  return true;
}

uint64_t card_allocate(int device, size_t size) {
  if (!card_get(device) || size > SIZE_MAX - PAGE_BYTES) return 0;
  size = round_up(size);
  pthread_mutex_lock(&lock);
  uint64_t address = 0;
  if (take_pages(device, size)) {
    address = address_take(device, size, ALLOCATED);
    if (!address) use(device, -(int64_t)size);
  }
  pthread_mutex_unlock(&lock);
  return address;
}

void card_note_kernel(int device, bool is_deep) {
  pthread_mutex_lock(&lock);
  address_note(device, is_deep ? DEEP_KERNEL_RAN : KERNEL_RAN);
  pthread_mutex_unlock(&lock);
}

void card_note_handle(int device) {
  pthread_mutex_lock(&lock);
  address_note(device, HANDLE_MADE);
  pthread_mutex_unlock(&lock);
}

bool card_free(uint64_t address) {
  pthread_mutex_lock(&lock);
  struct range *range = address_find(address);
  bool found = range && range->address == address && range->kind == ALLOCATED;
  if (found) {
    use(card_device_of(address), -(int64_t)range->size);
    address_drop(range);
  }
  pthread_mutex_unlock(&lock);
  return found;
}

bool card_range_of(uint64_t address, uint64_t *base, size_t *size) {
  pthread_mutex_lock(&lock);
  struct range *range = address_find(address);
  if (range) {
    *base = range->address;
    *size = range->size;
  }
  pthread_mutex_unlock(&lock);
  return range != NULL;
}

static int64_t context_bytes(int device) { return card_get(device) ? card_get(device)->figure[CARD_CONTEXT_BYTES] : 0; }

int64_t card_used_bytes(int device) {
  return card_get(device) ? used[device] + card_managed_on_card(device) + context_bytes(device) : 0;
}
void card_note_peak(int device) { take_larger(&peak[device], card_used_bytes(device) - context_bytes(device)); }
int64_t card_peak_used_bytes(int device) { return card_get(device) ? peak[device] + context_bytes(device) : 0; }

int64_t card_free_bytes(int device) {
  const struct card *card = card_get(device);
  int64_t room = card ? card->figure[CARD_TOTAL_BYTES] - card_used_bytes(device) : 0;
  return room > 0 ? room : 0;
}

/* ---- virtual memory management */

uint64_t card_reserve(int device, size_t size) {
  if (!card_get(device) || size == 0 || size > SIZE_MAX - PAGE_BYTES) return 0;
  pthread_mutex_lock(&lock);
  uint64_t address = address_take(device, round_up(size), RESERVED);
  pthread_mutex_unlock(&lock);
  return address;
}

bool card_unreserve(uint64_t address, size_t size) {
  pthread_mutex_lock(&lock);
  struct range *range = address_find(address);
  bool found = range && range->address == address && range->kind == RESERVED && range->size == round_up(size);
  if (found) address_drop(range);
  pthread_mutex_unlock(&lock);
  return found;
}

static void drop_reference(struct pages *pages) {
  if (--pages->references > 0) return;
  use(pages->device, -(int64_t)pages->size);
  free(pages);
}

uint64_t card_create_pages(int device, size_t size) {
  if (!card_get(device) || size == 0) return 0;
  struct pages *pages = calloc(1, sizeof *pages);
  if (!pages) return 0;
  pthread_mutex_lock(&lock);
  bool room = take_pages(device, round_up(size));
  pthread_mutex_unlock(&lock);
  if (!room) {
    free(pages);
    return 0;
  }
  *pages = (struct pages){device, round_up(size), 1};
  return (uint64_t)pages;
}

bool card_release_pages(uint64_t handle) {
  if (!handle) return false;
  pthread_mutex_lock(&lock);
  drop_reference((struct pages *)handle);
  pthread_mutex_unlock(&lock);
  return true;
}

static size_t first_mapping_from(uint64_t address) {
  size_t low = 0, high = mappings.count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (mappings.item[middle].address + mappings.item[middle].size <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

bool card_map(uint64_t address, size_t size, uint64_t handle) {
  if (!handle || size == 0) return false;
  pthread_mutex_lock(&lock);
  size_t at = first_mapping_from(address);
  struct range *range = address_find(address);
  bool fits = range && range->kind == RESERVED && address + size <= range->address + range->size &&
              (at == mappings.count || mappings.item[at].address >= address + size) &&
              list_grow((void **)&mappings.item, &mappings.capacity, mappings.count, sizeof *mappings.item);
  if (fits) {
    memmove(mappings.item + at + 1, mappings.item + at, (mappings.count - at) * sizeof *mappings.item);
    mappings.item[at] = (struct mapping){address, size, (struct pages *)handle};
    mappings.item[at].pages->references++;
    mappings.count++;
  }
  pthread_mutex_unlock(&lock);
  return fits;
}

/* Unmaps the whole mappings inside [address, address + size). */
bool card_unmap(uint64_t address, size_t size) {
  pthread_mutex_lock(&lock);
  size_t first = first_mapping_from(address), end = first;
  while (end < mappings.count && mappings.item[end].address >= address &&
         mappings.item[end].address + mappings.item[end].size <= address + size)
    drop_reference(mappings.item[end++].pages);
  memmove(mappings.item + first, mappings.item + end, (mappings.count - end) * sizeof *mappings.item);
  mappings.count -= end - first;
  pthread_mutex_unlock(&lock);
  return end > first;
}

uint64_t card_mapped_handle(uint64_t address) {
  pthread_mutex_lock(&lock);
  size_t at = first_mapping_from(address);
  bool found = at < mappings.count && mappings.item[at].address <= address;
  if (found) mappings.item[at].pages->references++;
  uint64_t handle = found ? (uint64_t)mappings.item[at].pages : 0;
  pthread_mutex_unlock(&lock);
  return handle;
}
