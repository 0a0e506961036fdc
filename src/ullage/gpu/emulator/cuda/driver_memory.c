/* libcuda: memory of the GPU, managed and in pools, and copies. */
#define _GNU_SOURCE
#include <string.h>

#include "../../tracing/journal/journal.h"
#include "runtime.h"

static int give(uint64_t *out, uint64_t address, size_t size, const void *caller) {
  *out = address;
  if (!address) return CUDA_OUT_OF_MEMORY;
  card_note_outside(caller, address, size, false);
  return CUDA_SUCCESS;
}
API int cuMemAlloc_v2(uint64_t *address, size_t size) {
  if (!size) return CUDA_INVALID_VALUE;
  return give(address, card_allocate(card_current(), size), size, CALLER);
}
API int cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned element) {
  (void)element;
  *pitch = (width + 511) & ~(size_t)511;
  return give(address, card_allocate(card_current(), *pitch * height), *pitch * height, CALLER);
}
API int cuMemFree_v2(uint64_t address) {
  card_forget_outside(address);
  bool freed = !address || card_pool_free(address);
  if (!freed && !card_pool_holds(address)) freed = card_free(address) || card_managed_free((void *)address);
  return freed ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuMemAllocAsync(uint64_t *address, size_t size, void *stream) {
  (void)stream;
  return give(address, card_pool_allocate(card_pool_current(card_current()), size), size, CALLER);
}
API int cuMemAllocFromPoolAsync(uint64_t *address, size_t size, void *pool, void *stream) {
  (void)stream;
  return give(address, card_pool_allocate(pool, size), size, CALLER);
}
API int cuMemFreeAsync(uint64_t address, void *stream) {
  (void)stream;
  return cuMemFree_v2(address);
}
API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = (size_t)card_free_bytes(card_current());
  *total_bytes = (size_t)card_get(card_current())->figure[CARD_TOTAL_BYTES];
  return CUDA_SUCCESS;
}
API int cuIpcGetMemHandle(struct ipc_handle *handle, uint64_t address) {
  return card_ipc_handle(address, handle) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuIpcOpenMemHandle_v2(uint64_t *address, struct ipc_handle handle, unsigned flags) {
  (void)flags;
  *address = card_ipc_open(&handle);
  return *address ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuIpcOpenMemHandle(uint64_t *address, struct ipc_handle handle, unsigned flags) {
  return cuIpcOpenMemHandle_v2(address, handle, flags);
}
API int cuIpcCloseMemHandle(uint64_t address) { return card_ipc_close(address) ? CUDA_SUCCESS : CUDA_INVALID_VALUE; }

/* ---- managed memory */

API int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
  (void)flags;
  if (!size) return CUDA_INVALID_VALUE;
  *address = (uint64_t)card_managed_allocate(size);
  if (*address) card_note_outside(CALLER, *address, size, true);
  return *address ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuMemPrefetchAsync(uint64_t address, size_t size, int device, void *stream) {
  (void)stream;
  return card_managed_prefetch((void *)address, size, device) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuMemPrefetchAsync_v2(uint64_t address, size_t size, struct location location, unsigned flags, void *stream) {
  (void)flags;
  return cuMemPrefetchAsync(address, size, place_of(location), stream);
}
API int cuMemAdvise(uint64_t address, size_t size, int advice, int device) {
  (void)size;
  return card_managed_advise((void *)address, advice, device) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuMemAdvise_v2(uint64_t address, size_t size, int advice, struct location location) {
  return cuMemAdvise(address, size, advice, place_of(location));
}
API int cuMemRangeGetAttribute(void *out, size_t out_size, int attribute, uint64_t address, size_t size) {
  (void)size;
  return managed_attribute(out, out_size, attribute, (void *)address) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuMemRangeGetAttributes(void **out, size_t *sizes, int *attributes, size_t count, uint64_t address,
                                size_t size) {
  for (size_t i = 0; i < count; i++)
    if (cuMemRangeGetAttribute(out[i], sizes[i], attributes[i], address, size) != CUDA_SUCCESS)
      return CUDA_INVALID_VALUE;
  return CUDA_SUCCESS;
}

/* ---- copies */

static int copy(uint64_t destination, uint64_t source, size_t size) {
  if (size && card_device_of(source) >= 0 && card_device_of(destination) < 0) journal_value_read(size);
  card_copy((void *)destination, (void *)source, size);
  return CUDA_SUCCESS;
}
#define COPY(name) \
  API int name(uint64_t destination, uint64_t source, size_t size) { return copy(destination, source, size); }
COPY(cuMemcpy)
COPY(cuMemcpyAsync)
COPY(cuMemcpyHtoD_v2)
COPY(cuMemcpyHtoDAsync_v2)
COPY(cuMemcpyDtoH_v2)
COPY(cuMemcpyDtoHAsync_v2)
COPY(cuMemcpyDtoD_v2)
COPY(cuMemcpyDtoDAsync_v2)
API int cuMemcpyPeer(uint64_t destination, void *to, uint64_t source, void *from, size_t size) {
  (void)to, (void)from;
  return copy(destination, source, size);
}
API int cuMemcpyPeerAsync(uint64_t destination, void *to, uint64_t source, void *from, size_t size, void *stream) {
  (void)stream;
  return cuMemcpyPeer(destination, to, source, from, size);
}

/* struct CUDA_MEMCPY2D: a side is the host's, the GPU's, an array, or an address of either. */
enum { HOST_SIDE = 1, ARRAY_SIDE = 3 };
struct side {
  size_t x, y;
  int kind;
  void *host;
  uint64_t device;
  void *array;
  size_t pitch;
};
struct rectangle {
  struct side from, to;
  size_t width, height;
};
static uint64_t corner(const struct side *side) {
  uint64_t base = side->kind == HOST_SIDE ? (uint64_t)side->host : side->device;
  return base + side->y * side->pitch + side->x;
}
API int cuMemcpy2D_v2(const struct rectangle *copied) {
  if (copied->to.kind == ARRAY_SIDE) return CUDA_SUCCESS; /* what an array holds is never read */
  for (size_t row = 0; row < copied->height; row++) {
    uint64_t to = corner(&copied->to) + row * copied->to.pitch;
    if (copied->from.kind == ARRAY_SIDE) card_fill((void *)to, 0, copied->width);
    else copy(to, corner(&copied->from) + row * copied->from.pitch, copied->width);
  }
  return CUDA_SUCCESS;
}
API int cuMemcpy2DUnaligned_v2(const struct rectangle *copied) { return cuMemcpy2D_v2(copied); }
API int cuMemcpy2DAsync_v2(const struct rectangle *copied, void *stream) {
  (void)stream;
  return cuMemcpy2D_v2(copied);
}

/* ---- fills: a GPU keeps no values, so of a wider element the lowest byte does for the host's memory */

#define FILL(bits, type)                                                                                    \
  API int cuMemsetD##bits##_v2(uint64_t address, type value, size_t count) {                                \
    card_fill((void *)address, (int)value, count * sizeof(type));                                           \
    return CUDA_SUCCESS;                                                                                    \
  }                                                                                                         \
  API int cuMemsetD##bits##Async(uint64_t address, type value, size_t count, void *stream) {                \
    (void)stream;                                                                                           \
    return cuMemsetD##bits##_v2(address, value, count);                                                     \
  }                                                                                                         \
  API int cuMemsetD2D##bits##_v2(uint64_t address, size_t pitch, type value, size_t width, size_t height) { \
    for (size_t row = 0; row < height; row++) cuMemsetD##bits##_v2(address + row * pitch, value, width);    \
    return CUDA_SUCCESS;                                                                                    \
  }                                                                                                         \
  API int cuMemsetD2D##bits##Async(uint64_t address, size_t pitch, type value, size_t width, size_t height, \
                                   void *stream) {                                                          \
    (void)stream;                                                                                           \
    return cuMemsetD2D##bits##_v2(address, pitch, value, width, height);                                    \
  }
FILL(8, uint8_t) FILL(16, uint16_t) FILL(32, uint32_t)
