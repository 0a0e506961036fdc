/* Stream-ordered pools (cudaMallocAsync).
 *
 * A pool takes segments from the GPU and allocates parts of them at 512 bytes' granularity. Freed memory can be used again
 * at once, because the GPU is infinitely fast. At a synchronisation, segments that are wholly free are returned to the GPU as
 * far as the pool holds more than its release threshold (0 from the beginning), as the CUDA programming guide has it.
 *
 * Not documented, and assumed: a segment is 32 MiB, or what is asked for in whole pages; a part is the smallest that fits.
 */
#include "card.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GRAIN_BYTES = 512 };
static const size_t SEGMENT_BYTES = (size_t)32 << 20;

struct block {
  uint64_t address;
  size_t size;
  size_t asked; /* 0: free */
};
struct segment {
  uint64_t address;
  size_t size;
  struct block *block; /* sorted, without gaps */
  size_t count, capacity;
  struct segment *next;
};
struct pool {
  int device;
  uint64_t threshold, reserved, reserved_high, used, used_high;
  struct segment *segments;
  struct pool *next;
};

static struct pool defaults[MAX_DEVICES];
static struct pool *current[MAX_DEVICES], *created;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *card_pool_default(int device) {
  if (!card_get(device)) return NULL;
  defaults[device].device = device;
  return &defaults[device];
}
void *card_pool_current(int device) {
  void *standard = card_pool_default(device);
  return standard && current[device] ? current[device] : standard;
}
bool card_pool_use(int device, void *pool) {
  if (!card_get(device)) return false;
  current[device] = pool;
  return true;
}
void *card_pool_create(int device) {
  struct pool *pool = card_get(device) ? calloc(1, sizeof *pool) : NULL;
  if (!pool) return NULL;
  pool->device = device;
  pthread_mutex_lock(&lock);
  pool->next = created;
  created = pool;
  pthread_mutex_unlock(&lock);
  return pool;
}

static void give_segment_back(struct pool *pool, struct segment **place) {
  struct segment *segment = *place;
  *place = segment->next;
  pool->reserved -= segment->size;
  card_free(segment->address);
  free(segment->block);
  free(segment);
}

static void trim(struct pool *pool, uint64_t keep) {
  struct segment **place = &pool->segments;
  while (*place && pool->reserved > keep) {
    struct segment *segment = *place;
    if (segment->count == 1 && !segment->block[0].asked) give_segment_back(pool, place);
    else place = &segment->next;
  }
}

/* What is still in use stays where it is; a real pool lives on until it is freed. */
bool card_pool_destroy(void *handle) {
  struct pool *pool = handle;
  pthread_mutex_lock(&lock);
  struct pool **place = &created;
  while (*place && *place != pool) place = &(*place)->next;
  bool found = *place != NULL;
  if (found) {
    pool->threshold = 0;
    trim(pool, 0);
    for (int device = 0; device < MAX_DEVICES; device++)
      if (current[device] == pool) current[device] = NULL;
    if (!pool->segments) {
      *place = pool->next;
      free(pool);
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static struct segment *new_segment(struct pool *pool, size_t size) {
  struct segment *segment = calloc(1, sizeof *segment);
  struct block *blocks = segment ? malloc(16 * sizeof *blocks) : NULL;
  size_t wanted = size > SEGMENT_BYTES ? (size + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1) : SEGMENT_BYTES;
  uint64_t address = blocks ? card_allocate(pool->device, wanted) : 0;
  if (blocks && !address && wanted > size) { /* less memory than a segment: as much as is needed */
    wanted = (size + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    address = card_allocate(pool->device, wanted);
  }
  if (!address) {
    free(blocks);
    free(segment);
    return NULL;
  }
  blocks[0] = (struct block){address, wanted, 0};
  *segment = (struct segment){address, wanted, blocks, 1, 16, pool->segments};
  pool->segments = segment;
  pool->reserved += wanted;
  if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
  return segment;
}

static bool split(struct segment *segment, size_t at, size_t size) {
  if (segment->block[at].size == size) return true;
  if (segment->count == segment->capacity) {
    struct block *grown = realloc(segment->block, 2 * segment->capacity * sizeof *grown);
    if (!grown) return false;
    segment->block = grown;
    segment->capacity *= 2;
  }
  struct block *block = segment->block + at;
  memmove(block + 2, block + 1, (segment->count - at - 1) * sizeof *block);
  block[1] = (struct block){block->address + size, block->size - size, 0};
  block->size = size;
  segment->count++;
  return true;
}

static struct block *smallest_that_fits(struct pool *pool, size_t size, struct segment **where) {
  struct block *best = NULL;
  for (struct segment *segment = pool->segments; segment; segment = segment->next)
    for (size_t i = 0; i < segment->count; i++) {
      struct block *block = &segment->block[i];
      if (block->asked || block->size < size || (best && block->size >= best->size)) continue;
      best = block;
      *where = segment;
    }
  return best;
}

uint64_t card_pool_allocate(void *handle, size_t asked) {
  struct pool *pool = handle;
  if (!pool || asked == 0 || asked > SIZE_MAX - PAGE_BYTES) return 0;
  size_t size = (asked + GRAIN_BYTES - 1) & ~(size_t)(GRAIN_BYTES - 1);
  struct segment *segment = NULL;
  uint64_t address = 0;
  pthread_mutex_lock(&lock);
  struct block *block = smallest_that_fits(pool, size, &segment);
  if (!block) {
    segment = new_segment(pool, size);
    if (!segment) { /* what this pool keeps unused may be what is in the way */
      trim(pool, 0);
      segment = new_segment(pool, size);
    }
    block = segment ? segment->block : NULL;
  }
  size_t at = block ? (size_t)(block - segment->block) : 0;
  if (block && split(segment, at, size)) {
    segment->block[at].asked = asked;
    address = segment->block[at].address;
    pool->used += size;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
  }
  pthread_mutex_unlock(&lock);
  return address;
}

static struct block *block_in(struct pool *pool, uint64_t address, struct segment **where) {
  for (struct segment *segment = pool->segments; segment; segment = segment->next) {
    if (address < segment->address || address - segment->address >= segment->size) continue;
    for (size_t i = 0; i < segment->count; i++)
      if (address - segment->block[i].address < segment->block[i].size && address >= segment->block[i].address) {
        *where = segment;
        return &segment->block[i];
      }
  }
  return NULL;
}

static struct block *find(uint64_t address, struct pool **pool, struct segment **segment) {
  struct block *block = NULL;
  for (int device = 0; device < card_count() && !block; device++)
    block = block_in(*pool = &defaults[device], address, segment);
  for (struct pool *other = created; other && !block; other = other->next)
    block = block_in(*pool = other, address, segment);
  return block;
}

bool card_pool_free(uint64_t address) {
  struct pool *pool;
  struct segment *segment;
  pthread_mutex_lock(&lock);
  struct block *block = find(address, &pool, &segment);
  bool found = block && block->address == address && block->asked;
  if (found) {
    pool->used -= block->size;
    block->asked = 0;
    size_t first = (size_t)(block - segment->block), last = first;
    if (first > 0 && !segment->block[first - 1].asked) first--;
    if (last + 1 < segment->count && !segment->block[last + 1].asked) last++;
    for (size_t i = first + 1; i <= last; i++) segment->block[first].size += segment->block[i].size;
    memmove(segment->block + first + 1, segment->block + last + 1, (segment->count - last - 1) * sizeof *block);
    segment->count -= last - first;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

bool card_pool_holds(uint64_t address) {
  struct pool *pool;
  struct segment *segment;
  pthread_mutex_lock(&lock);
  bool found = find(address, &pool, &segment) != NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

bool card_pool_block(uint64_t address, uint64_t *base, size_t *size) {
  struct pool *pool;
  struct segment *segment;
  pthread_mutex_lock(&lock);
  struct block *block = find(address, &pool, &segment);
  bool found = block && block->asked;
  if (found) *base = block->address, *size = block->asked;
  pthread_mutex_unlock(&lock);
  return found;
}

void card_pool_trim(void *pool, uint64_t keep) {
  pthread_mutex_lock(&lock);
  trim(pool, keep);
  pthread_mutex_unlock(&lock);
}

void card_synchronized(void) {
  pthread_mutex_lock(&lock);
  for (int device = 0; device < card_count(); device++) trim(&defaults[device], defaults[device].threshold);
  for (struct pool *pool = created; pool; pool = pool->next) trim(pool, pool->threshold);
  pthread_mutex_unlock(&lock);
}

bool card_pool_get(void *handle, int attribute, uint64_t *value) {
  struct pool *pool = handle;
  switch (attribute) {
    case POOL_RELEASE_THRESHOLD: *value = pool->threshold; return true;
    case POOL_RESERVED: *value = pool->reserved; return true;
    case POOL_RESERVED_HIGH: *value = pool->reserved_high; return true;
    case POOL_USED: *value = pool->used; return true;
    case POOL_USED_HIGH: *value = pool->used_high; return true;
    default: return false;
  }
}
bool card_pool_set(void *handle, int attribute, uint64_t value) {
  struct pool *pool = handle;
  switch (attribute) {
    case POOL_RELEASE_THRESHOLD: pool->threshold = value; return true;
    case POOL_RESERVED_HIGH:
      pool->reserved_high = pool->reserved;
      return value == 0; /* a high mark can only be reset */
    case POOL_USED_HIGH: pool->used_high = pool->used; return value == 0;
    default: return false;
  }
}
