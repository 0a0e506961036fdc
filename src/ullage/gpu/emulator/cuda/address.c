/* The addresses at which the driver places memory. They affect what PyTorch reserves up to torch 2.11: among free blocks
 * of equal size, it chooses the one with the lower address. Seen in recordings of real GPUs (docs/emulator.md, "Memory"):
 *
 *   Linux    Address space is taken in chunks of whole 32 MiB, each put as high as it goes below the top. A segment
 *            is placed at its chunk's bottom, and later segments first use what is left of chunks, from the lowest
 *            address up. A chunk without segments is freed.
 *   Next to the host   The same, and what the process itself maps lies between the chunks, as on a real machine.
 *   WSL      The lowest gap, without chunks; the driver's own memory lies between the segments (below).
 *   Windows  The lowest gap.
 *
 * It is not known where Linux puts what is reserved for expandable segments: here at the other end, ascending.
 */
#define _GNU_SOURCE
#include "address.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A reader of recordings recognizes the system by its addresses: Linux gives addresses above 2^44, WSL and Windows below. All
 * GPUs together have one of two stretches, so that each GPU's addresses are on its system's side. */
static const uint64_t FIRST_ADDRESS = 0x0a0000000000, LINUX_FIRST_ADDRESS = (uint64_t)1 << 44;
static const uint64_t LAST_ADDRESS = ((uint64_t)1 << 44) + ((uint64_t)64 << 40);
static const size_t CHUNK_BYTES = (size_t)32 << 20;

/* Sorted by address: a GPU has thousands of segments at most. */
struct ranges {
  struct range *item;
  size_t count, capacity;
};
struct chunk {
  uint64_t address;
  size_t size, used;
  void *host; /* mapped for as long as the chunk lives; NULL: nothing */
};
struct chunks { /* sorted by address, too */
  struct chunk *item;
  size_t count, capacity;
};
static struct ranges ranges[MAX_DEVICES];
static struct chunks chunks[MAX_DEVICES];

static bool is_placed_as_linux(int device) {
  const struct card *card = card_get(device);
  int64_t placement = card ? card->figure[CARD_PLACEMENT] : PLACEMENT_LINUX;
  return placement == PLACEMENT_LINUX || placement == PLACEMENT_LINUX_HOST;
}

/* A GPU's part of its stretch. Fixed at the first use: a script may show fewer of its GPUs later. */
static uint64_t span_of(bool is_linux) {
  static uint64_t cards;
  if (!cards) cards = (uint64_t)card_count();
  uint64_t bytes = is_linux ? LAST_ADDRESS - LINUX_FIRST_ADDRESS : LINUX_FIRST_ADDRESS - FIRST_ADDRESS;
  return bytes / (cards ? cards : 1) & ~(uint64_t)(CHUNK_BYTES - 1);
}
static uint64_t device_span(int device) { return span_of(is_placed_as_linux(device)); }
static uint64_t device_start(int device) {
  return (is_placed_as_linux(device) ? LINUX_FIRST_ADDRESS : FIRST_ADDRESS) + (uint64_t)device * device_span(device);
}

int card_device_of(uint64_t address) {
  if (address < FIRST_ADDRESS || address >= LAST_ADDRESS) return -1;
  bool is_linux = address >= LINUX_FIRST_ADDRESS;
  uint64_t device = (address - (is_linux ? LINUX_FIRST_ADDRESS : FIRST_ADDRESS)) / span_of(is_linux);
  return device < (uint64_t)card_count() ? (int)device : -1;
}

/* Nothing else of this process may get addresses that look like the GPU's. Where the host refuses so large a
 * reservation (a limit on address space), the numbers alone still do. */
static void reserve_space(void) {
  static bool is_reserved;
  if (is_reserved) return;
  is_reserved = true;
  mmap((void *)FIRST_ADDRESS, LAST_ADDRESS - FIRST_ADDRESS, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

/* Where values are computed on the host, the GPU's memory is host memory, at the GPU's own addresses: a page
 * takes host memory when it is first written, and frees it with its range. */
static bool holds_values;
void card_hold_values(void) { holds_values = true; }
bool card_holds_values(void) { return holds_values; }

static bool give_pages(uint64_t address, size_t size, bool are_readable) {
  int access = are_readable ? PROT_READ | PROT_WRITE : PROT_NONE;
  return mmap((void *)address, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

bool list_grow(void **items, size_t *capacity, size_t count, size_t item_size) {
  if (count < *capacity) return true;
  size_t wanted = *capacity ? 2 * *capacity : 64;
  void *grown = realloc(*items, wanted * item_size);
  if (!grown) return false;
  *items = grown;
  *capacity = wanted;
  return true;
}

/* The first range that ends above an address. */
static size_t first_above(const struct ranges *list, uint64_t address) {
  size_t low = 0, high = list->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (list->item[middle].address + list->item[middle].size <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* The lowest gap in [start, end) that is large enough; 0 if none is. */
static uint64_t lowest_gap(const struct ranges *list, uint64_t start, uint64_t end, size_t size) {
  uint64_t gap = start;
  for (size_t at = first_above(list, start); at < list->count && list->item[at].address < end; at++) {
    const struct range *range = &list->item[at];
    if (range->address > gap && range->address - gap >= size) return gap;
    gap = range->address + range->size;
  }
  return gap < end && end - gap >= size ? gap : 0;
}

/* ---- Linux */

static struct chunk *chunk_of(struct chunks *list, uint64_t address) {
  size_t low = 0, high = list->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (list->item[middle].address + list->item[middle].size <= address) low = middle + 1;
    else high = middle;
  }
  return low < list->count && list->item[low].address <= address ? &list->item[low] : NULL;
}

/* As high as it goes below the top: into the highest hole that holds it; 0 if none is. */
static uint64_t highest_hole(int device, size_t size) {
  const struct chunks *list = &chunks[device];
  uint64_t bottom = device_start(device), top = bottom + device_span(device);
  size_t at = list->count;
  for (; at > 0 && top - (list->item[at - 1].address + list->item[at - 1].size) < size; at--)
    top = list->item[at - 1].address;
  if (top - bottom < size || (at == 0 && lowest_gap(&ranges[device], top - size, top, size) == 0)) return 0;
  return top - size;
}

/* Where the kernel puts a mapping of this size now, aligned to a chunk: above or below earlier ones as a driver's would be,
 * which asks it in the same way. What the process has mapped since, and unmapped (a model that moves to the GPU tensor by
 * tensor leaves holes above), so decides as on a real machine. The mapping holds the place, and cannot be read. The first
 * lies in the middle of the GPU's span; 0 where the kernel gives none, or one that lies too far from the first. */
static uint64_t beside_the_host(int device, size_t size, void **host) {
  static uint64_t first;
  uint64_t bottom = device_start(device), span = device_span(device);
  char *mapped = mmap(NULL, size + CHUNK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return 0;
  char *end = mapped + size + CHUNK_BYTES, *aligned = (char *)((uint64_t)(end - size) & ~(uint64_t)(CHUNK_BYTES - 1));
  if (aligned > mapped) munmap(mapped, (size_t)(aligned - mapped));
  if (end > aligned + size) munmap(aligned + size, (size_t)(end - (aligned + size)));
  if (!first) first = (uint64_t)aligned;
  uint64_t middle = (bottom + span / 2) & ~(uint64_t)(CHUNK_BYTES - 1), address = middle + (uint64_t)aligned - first;
  bool is_free = address >= bottom && address <= bottom + span - size &&
                 lowest_gap(&ranges[device], address, address + size, size);
  if (is_free) *host = aligned;
  else munmap(aligned, size);
  return is_free ? address : 0;
}

static uint64_t new_chunk(int device, size_t size) {
  struct chunks *list = &chunks[device];
  if (!list_grow((void **)&list->item, &list->capacity, list->count, sizeof *list->item)) return 0;
  size = (size + CHUNK_BYTES - 1) & ~(CHUNK_BYTES - 1);
  struct chunk chunk = {.size = size};
  if (card_get(device)->figure[CARD_PLACEMENT] == PLACEMENT_LINUX_HOST)
    chunk.address = beside_the_host(device, size, &chunk.host);
  if (!chunk.address) chunk.address = highest_hole(device, size);
  if (!chunk.address) return 0;
  size_t at = list->count;
  while (at > 0 && list->item[at - 1].address > chunk.address) at--;
  memmove(list->item + at + 1, list->item + at, (list->count - at) * sizeof *list->item);
  list->item[at] = chunk;
  list->count++;
  return chunk.address;
}

static uint64_t place_in_chunks(int device, size_t size) {
  struct chunks *list = &chunks[device];
  uint64_t address = 0;
  for (size_t at = 0; at < list->count && !address; at++) {
    const struct chunk *chunk = &list->item[at];
    if (chunk->size - chunk->used >= size)
      address = lowest_gap(&ranges[device], chunk->address, chunk->address + chunk->size, size);
  }
  if (!address) address = new_chunk(device, size);
  if (address) chunk_of(list, address)->used += size;
  return address;
}

static void leave_chunk(int device, const struct range *range) {
  struct chunks *list = &chunks[device];
  struct chunk *chunk = chunk_of(list, range->address);
  if (!chunk) return; /* other systems have none */
  chunk->used -= range->size;
  if (chunk->used) return;
  if (chunk->host) munmap(chunk->host, chunk->size);
  memmove(chunk, chunk + 1, (size_t)(list->item + list->count - (chunk + 1)) * sizeof *chunk);
  list->count--;
}

/* ---- WSL: what the driver takes for itself. Fitted to one recording of a GPU with 128 multiprocessors (torch 2.11,
 * CUDA 12.8), all 377 segments of which get their recorded addresses, and compared with two more. The stacks of all
 * threads that the GPU holds are there when the first segment is made. A kernel that checks an index needs more and has
 * them made again: what they leave is a hole below the first segment. What bf16 adds (6 MiB) and what other GPUs do is
 * not known. */

static const size_t STACK_BYTES = 1024 + 32, DEEP_STACK_BYTES = 1280; /* of a thread */
static const size_t FIRST_KERNEL_BYTES = (size_t)2 << 20;
static const size_t FIRST_HANDLE_BYTES = (size_t)10 << 20, HANDLE_BYTES = (size_t)8 << 20; /* of cuBLAS */

static struct {
  uint64_t stacks;
  bool has_kernel, is_deep, has_handle;
} own[MAX_DEVICES];

static uint64_t take_stacks(int device, size_t bytes) {
  const struct card *card = card_get(device);
  size_t threads = (size_t)(card->figure[CARD_SM_COUNT] * card->figure[CARD_THREADS_PER_SM]);
  return address_take(device, (threads * bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1), DRIVERS);
}

static bool is_wsl(int device) {
  const struct card *card = card_get(device);
  return card && card->figure[CARD_PLACEMENT] == PLACEMENT_WSL;
}

static void take_first_stacks(int device) {
  if (!own[device].stacks) own[device].stacks = take_stacks(device, STACK_BYTES);
}

void address_note(int device, enum driver_event event) {
  if (!is_wsl(device)) return;
  take_first_stacks(device);
  if (event == HANDLE_MADE) {
    address_take(device, own[device].has_handle ? HANDLE_BYTES : FIRST_HANDLE_BYTES, DRIVERS);
    own[device].has_handle = true;
    return;
  }
  if (!own[device].has_kernel) address_take(device, FIRST_KERNEL_BYTES, DRIVERS);
  own[device].has_kernel = true;
  if (event != DEEP_KERNEL_RAN || own[device].is_deep) return;
  own[device].is_deep = true;
  uint64_t before = own[device].stacks;
  own[device].stacks = take_stacks(device, DEEP_STACK_BYTES);
  struct range *range = address_find(before);
  if (range && range->address == before) address_drop(range);
}

/* ---- all systems */

static uint64_t place(int device, size_t size, enum range_kind kind) {
  uint64_t start = device_start(device), end = start + device_span(device);
  if (kind == ALLOCATED && is_placed_as_linux(device)) return place_in_chunks(device, size);
  return lowest_gap(&ranges[device], start, end, size);
}

uint64_t address_take(int device, size_t size, enum range_kind kind) {
  struct ranges *list = &ranges[device];
  reserve_space();
  if (kind == ALLOCATED && is_wsl(device)) take_first_stacks(device);
  if (!list_grow((void **)&list->item, &list->capacity, list->count, sizeof *list->item)) return 0;
  uint64_t address = place(device, size, kind);
  if (!address || (holds_values && kind != DRIVERS && !give_pages(address, size, true))) return 0;
  size_t at = first_above(list, address);
  memmove(list->item + at + 1, list->item + at, (list->count - at) * sizeof *list->item);
  list->item[at] = (struct range){address, size, kind};
  list->count++;
  return address;
}

struct range *address_find(uint64_t address) {
  int device = card_device_of(address);
  if (device < 0) return NULL;
  struct ranges *list = &ranges[device];
  size_t at = first_above(list, address);
  return at < list->count && list->item[at].address <= address ? &list->item[at] : NULL;
}

void address_drop(struct range *range) {
  int device = card_device_of(range->address);
  struct ranges *list = &ranges[device];
  size_t at = (size_t)(range - list->item);
  if (holds_values && range->kind != DRIVERS) give_pages(range->address, range->size, false);
  if (range->kind == ALLOCATED) leave_chunk(device, range);
  memmove(range, range + 1, (list->count - at - 1) * sizeof *range);
  list->count--;
}
