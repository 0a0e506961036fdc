/* Device memory: addresses first fit and ascending at 2 MiB granularity, pages counted against the card's size.
 *
 * Each card owns one range of addresses. A range is handed out by cudaMalloc (with pages of its own) or by
 * cuMemAddressReserve (without; pages are mapped into it later).
 */
#define _GNU_SOURCE
#include "card.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const uint64_t FIRST_ADDRESS = 0x0a0000000000;
static const uint64_t ADDRESS_SPACE = (uint64_t)64 << 40;

enum range_kind { ALLOCATED, RESERVED };
struct range {
  uint64_t address;
  size_t size;
  enum range_kind kind;
};
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

/* Sorted by address: a card has thousands of segments at most, and they come in ascending order. */
struct ranges {
  struct range *item;
  size_t count, capacity;
};
struct mappings {
  struct mapping *item;
  size_t count, capacity;
};

static struct ranges ranges[MAX_DEVICES];
static struct mappings mappings;
static int64_t used[MAX_DEVICES], peak[MAX_DEVICES]; /* without the context */
static bool space_is_reserved;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Fixed at the first use: a script may show fewer of its cards later. */
static uint64_t device_span(void) {
  static uint64_t span;
  if (!span && card_count()) span = ADDRESS_SPACE / (uint64_t)card_count() & ~(uint64_t)(PAGE_BYTES - 1);
  return span ? span : ADDRESS_SPACE;
}
static uint64_t device_start(int device) { return FIRST_ADDRESS + (uint64_t)device * device_span(); }
static size_t round_up(size_t size) { return (size + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); }

/* Nothing else of this process may get addresses that look like the card's. Where the host refuses so large a
 * reservation (a limit on address space), the numbers alone still do. */
static void reserve_space(void) {
  if (space_is_reserved) return;
  space_is_reserved = true;
  mmap((void *)FIRST_ADDRESS, ADDRESS_SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

static bool grow(void **items, size_t *capacity, size_t count, size_t item_size) {
  if (count < *capacity) return true;
  size_t wanted = *capacity ? 2 * *capacity : 64;
  void *grown = realloc(*items, wanted * item_size);
  if (!grown) return false;
  *items = grown;
  *capacity = wanted;
  return true;
}

static bool take_pages(int device, size_t size) {
  const struct card *card = card_get(device);
  int64_t room = card->figure[CARD_TOTAL_BYTES] - card->figure[CARD_CONTEXT_BYTES] - used[device];
  if (room < 0 || size > (uint64_t)room) return false;
  used[device] += (int64_t)size;
  if (used[device] > peak[device]) peak[device] = used[device];
  return true;
}

/* The lowest gap that is large enough; 0 where there is none. */
static uint64_t take_range(int device, size_t size, enum range_kind kind) {
  struct ranges *list = &ranges[device];
  reserve_space();
  if (!grow((void **)&list->item, &list->capacity, list->count, sizeof *list->item)) return 0;
  uint64_t address = device_start(device), end = address + device_span();
  size_t at = 0;
  for (; at < list->count && list->item[at].address - address < size; at++) address = list->item[at].address + list->item[at].size;
  if (size > end - address) return 0;
  memmove(list->item + at + 1, list->item + at, (list->count - at) * sizeof *list->item);
  list->item[at] = (struct range){address, size, kind};
  list->count++;
  return address;
}

static struct range *find_range(uint64_t address) {
  int device = card_device_of(address);
  if (device < 0) return NULL;
  struct ranges *list = &ranges[device];
  size_t low = 0, high = list->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (list->item[middle].address + list->item[middle].size <= address) low = middle + 1;
    else high = middle;
  }
  return low < list->count && list->item[low].address <= address ? &list->item[low] : NULL;
}

static void drop_range(struct range *range) {
  struct ranges *list = &ranges[card_device_of(range->address)];
  size_t at = (size_t)(range - list->item);
  memmove(range, range + 1, (list->count - at - 1) * sizeof *range);
  list->count--;
}

int card_device_of(uint64_t address) {
  if (address < FIRST_ADDRESS || address >= FIRST_ADDRESS + ADDRESS_SPACE) return -1;
  int device = (int)((address - FIRST_ADDRESS) / device_span());
  return device < card_count() ? device : -1;
}

uint64_t card_allocate(int device, size_t size) {
  if (!card_get(device) || size > SIZE_MAX - PAGE_BYTES) return 0;
  size = round_up(size);
  pthread_mutex_lock(&lock);
  uint64_t address = 0;
  if (take_pages(device, size)) {
    address = take_range(device, size, ALLOCATED);
    if (!address) used[device] -= (int64_t)size;
  }
  pthread_mutex_unlock(&lock);
  return address;
}

bool card_free(uint64_t address) {
  pthread_mutex_lock(&lock);
  struct range *range = find_range(address);
  bool found = range && range->address == address && range->kind == ALLOCATED;
  if (found) {
    used[card_device_of(address)] -= (int64_t)range->size;
    drop_range(range);
  }
  pthread_mutex_unlock(&lock);
  return found;
}

bool card_range_of(uint64_t address, uint64_t *base, size_t *size) {
  pthread_mutex_lock(&lock);
  struct range *range = find_range(address);
  if (range) {
    *base = range->address;
    *size = range->size;
  }
  pthread_mutex_unlock(&lock);
  return range != NULL;
}

static int64_t context_bytes(int device) { return card_get(device) ? card_get(device)->figure[CARD_CONTEXT_BYTES] : 0; }

int64_t card_used_bytes(int device) { return card_get(device) ? used[device] + context_bytes(device) : 0; }
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
  uint64_t address = take_range(device, round_up(size), RESERVED);
  pthread_mutex_unlock(&lock);
  return address;
}

bool card_unreserve(uint64_t address, size_t size) {
  pthread_mutex_lock(&lock);
  struct range *range = find_range(address);
  bool found = range && range->address == address && range->kind == RESERVED && range->size == round_up(size);
  if (found) drop_range(range);
  pthread_mutex_unlock(&lock);
  return found;
}

static void drop_reference(struct pages *pages) {
  if (--pages->references > 0) return;
  used[pages->device] -= (int64_t)pages->size;
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

bool card_retain_pages(uint64_t handle) {
  if (!handle) return false;
  pthread_mutex_lock(&lock);
  ((struct pages *)handle)->references++;
  pthread_mutex_unlock(&lock);
  return true;
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
  struct range *range = find_range(address);
  bool fits = range && range->kind == RESERVED && address + size <= range->address + range->size &&
              (at == mappings.count || mappings.item[at].address >= address + size) &&
              grow((void **)&mappings.item, &mappings.capacity, mappings.count, sizeof *mappings.item);
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
