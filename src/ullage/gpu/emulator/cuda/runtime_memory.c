/* libcudart: memory of the GPU, of the host, managed, in pools, in arrays, of another process. */
#include <string.h>

#include "runtime.h"

static int give(void **out, uint64_t address, size_t size, const void *caller) {
  *out = (void *)address;
  if (!address) return cuda_fail(CUDA_OUT_OF_MEMORY);
  card_note_outside(caller, address, size, false);
  return CUDA_SUCCESS;
}
API int cudaMalloc(void **address, size_t size) {
  *address = NULL;
  if (size == 0) return CUDA_SUCCESS;
  return give(address, card_allocate(card_current(), size), size, CALLER);
}
API int cudaFree(void *address) {
  if (!address) return CUDA_SUCCESS;
  card_forget_outside((uint64_t)address);
  bool freed = card_pool_free((uint64_t)address);
  if (!freed && !card_pool_holds((uint64_t)address)) freed = card_free((uint64_t)address) || card_managed_free(address);
  return freed ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
API int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  const struct card *card = card_get(card_current());
  if (!card) return cuda_fail(CUDA_NO_DEVICE);
  *free_bytes = (size_t)card_free_bytes(card_current());
  *total_bytes = (size_t)card->figure[CARD_TOTAL_BYTES];
  return CUDA_SUCCESS;
}

/* Rows begin at multiples of 512 bytes, the alignment of textures. */
static size_t pitch_of(size_t width) { return (width + 511) & ~(size_t)511; }
API int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  *address = NULL;
  *pitch = pitch_of(width);
  size_t size = *pitch * height;
  return size ? give(address, card_allocate(card_current(), size), size, CALLER) : CUDA_SUCCESS;
}
API int cudaMalloc3D(struct pitched *out, struct extent extent) {
  *out = (struct pitched){NULL, pitch_of(extent.width), extent.width, extent.height};
  size_t size = out->pitch * extent.height * extent.depth;
  return size ? give(&out->address, card_allocate(card_current(), size), size, CALLER) : CUDA_SUCCESS;
}

/* ---- managed memory */

API int cudaMallocManaged(void **address, size_t size, unsigned flags) {
  (void)flags;
  *address = size ? card_managed_allocate(size) : NULL;
  if (!size) return cuda_fail(CUDA_INVALID_VALUE);
  if (!*address) return cuda_fail(CUDA_OUT_OF_MEMORY);
  card_note_outside(CALLER, (uint64_t)*address, size, true);
  return CUDA_SUCCESS;
}
static int prefetch(const void *address, size_t size, int device) {
  return card_managed_prefetch(address, size, device) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
static int advise(const void *address, int advice, int device) {
  return card_managed_advise(address, advice, device) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
#if ULLAGE_CUDA_MAJOR < 13
API int cudaMemPrefetchAsync(const void *address, size_t size, int device, void *stream) {
  (void)stream;
  return prefetch(address, size, device);
}
API int cudaMemAdvise(const void *address, size_t size, int advice, int device) {
  (void)size;
  return advise(address, advice, device);
}
API int cudaMemPrefetchAsync_v2
#else
API int cudaMemPrefetchAsync
#endif
    (const void *address, size_t size, struct location location, unsigned flags, void *stream) {
  (void)flags, (void)stream;
  return prefetch(address, size, place_of(location));
}
#if ULLAGE_CUDA_MAJOR < 13
API int cudaMemAdvise_v2
#else
API int cudaMemAdvise
#endif
    (const void *address, size_t size, int advice, struct location location) {
  (void)size;
  return advise(address, advice, place_of(location));
}
API int cudaMemRangeGetAttribute(void *out, size_t out_size, int attribute, const void *address, size_t size) {
  (void)size;
  return managed_attribute(out, out_size, attribute, address) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
API int cudaMemRangeGetAttributes(void **out, size_t *sizes, int *attributes, size_t count, const void *address,
                                  size_t size) {
  for (size_t i = 0; i < count; i++)
    if (cudaMemRangeGetAttribute(out[i], sizes[i], attributes[i], address, size) != CUDA_SUCCESS)
      return CUDA_INVALID_VALUE;
  return CUDA_SUCCESS;
}
ACCEPTS(cudaStreamAttachMemAsync)

/* ---- stream-ordered pools */

API int cudaMallocFromPoolAsync(void **address, size_t size, void *pool, void *stream) {
  (void)stream;
  *address = NULL;
  return size ? give(address, card_pool_allocate(pool, size), size, CALLER) : CUDA_SUCCESS;
}
API int cudaMallocAsync(void **address, size_t size, void *stream) {
  (void)stream;
  *address = NULL;
  return size ? give(address, card_pool_allocate(card_pool_current(card_current()), size), size, CALLER) : CUDA_SUCCESS;
}
API int cudaFreeAsync(void *address, void *stream) {
  (void)stream;
  return cudaFree(address);
}
static int pool_answer(void **out, void *pool) {
  *out = pool;
  return pool ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_DEVICE);
}
API int cudaDeviceGetDefaultMemPool(void **pool, int device) { return pool_answer(pool, card_pool_default(device)); }
API int cudaDeviceGetMemPool(void **pool, int device) { return pool_answer(pool, card_pool_current(device)); }
API int cudaDeviceSetMemPool(int device, void *pool) {
  return card_pool_use(device, pool) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_DEVICE);
}
API int cudaMemGetDefaultMemPool(void **pool, const struct location *location, int kind) {
  (void)kind;
  return location->type == ON_DEVICE ? cudaDeviceGetDefaultMemPool(pool, location->id) : cuda_fail(CUDA_NOT_SUPPORTED);
}
API int cudaMemGetMemPool(void **pool, const struct location *location, int kind) {
  (void)kind;
  return location->type == ON_DEVICE ? cudaDeviceGetMemPool(pool, location->id) : cuda_fail(CUDA_NOT_SUPPORTED);
}
API int cudaMemSetMemPool(const struct location *location, int kind, void *pool) {
  (void)kind;
  return location->type == ON_DEVICE ? cudaDeviceSetMemPool(location->id, pool) : cuda_fail(CUDA_NOT_SUPPORTED);
}
struct pool_properties {
  int kind, handle_types;
  struct location location;
};
API int cudaMemPoolCreate(void **pool, const struct pool_properties *properties) {
  return properties->location.type == ON_DEVICE ? pool_answer(pool, card_pool_create(properties->location.id))
                                                : cuda_fail(CUDA_NOT_SUPPORTED);
}
API int cudaMemPoolDestroy(void *pool) {
  return card_pool_destroy(pool) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
API int cudaMemPoolTrimTo(void *pool, size_t keep) {
  card_pool_trim(pool, keep);
  return CUDA_SUCCESS;
}
API int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
  if (attribute < POOL_RELEASE_THRESHOLD) return CUDA_SUCCESS; /* how streams may reuse: they always do */
  return card_pool_set(pool, attribute, *(uint64_t *)value) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
API int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
  if (attribute < POOL_RELEASE_THRESHOLD) *(int *)value = 1;
  else if (!card_pool_get(pool, attribute, value)) return cuda_fail(CUDA_INVALID_VALUE);
  return CUDA_SUCCESS;
}
API int cudaMemPoolGetAccess(int *flags, void *pool, const struct location *location) {
  enum { READ_AND_WRITE = 3 };
  (void)pool, (void)location;
  *flags = READ_AND_WRITE;
  return CUDA_SUCCESS;
}
ACCEPTS(cudaMemPoolSetAccess)

/* ---- memory of the host */

API int cudaHostAlloc(void **address, size_t size, unsigned flags) {
  (void)flags;
  *address = card_pin_allocate(size);
  return *address ? CUDA_SUCCESS : cuda_fail(CUDA_OUT_OF_MEMORY);
}
API int cudaMallocHost(void **address, size_t size) { return cudaHostAlloc(address, size, 0); }
API int cudaFreeHost(void *address) {
  return !address || card_pin_free(address) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
API int cudaHostRegister(void *address, size_t size, unsigned flags) {
  (void)flags;
  if (card_is_pinned(address)) return cuda_fail(CUDA_HOST_REGISTERED);
  return card_pin_register(address, size) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
API int cudaHostUnregister(void *address) {
  return card_pin_unregister(address) ? CUDA_SUCCESS : cuda_fail(CUDA_HOST_NOT_REGISTERED);
}
API int cudaHostGetDevicePointer(void **device_address, void *address, unsigned flags) {
  (void)flags;
  *device_address = address;
  return CUDA_SUCCESS;
}
API int cudaHostGetFlags(unsigned *flags, void *address) {
  *flags = 0;
  return card_is_pinned(address) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}

struct pointer_attributes {
  int type, device;
  void *device_pointer, *host_pointer;
#if ULLAGE_CUDA_MAJOR >= 13
  long reserved[8];
#endif
};
API int cudaPointerGetAttributes(struct pointer_attributes *out, const void *address) {
  enum { UNREGISTERED, HOST, DEVICE, MANAGED };
  int device = card_device_of((uint64_t)address);
  struct managed managed;
  memset(out, 0, sizeof *out);
  if (device >= 0) {
    out->type = DEVICE;
    out->device = device;
    out->device_pointer = (void *)address;
  } else if (card_managed_of(address, &managed)) {
    out->type = MANAGED;
    out->device = managed.device >= 0 ? managed.device : card_current();
    out->device_pointer = out->host_pointer = (void *)address;
  } else if (card_is_pinned(address)) {
    out->type = HOST;
    out->device = card_current();
    out->device_pointer = out->host_pointer = (void *)address;
  } else {
    out->type = UNREGISTERED;
    out->device = -2;
    out->host_pointer = (void *)address;
  }
  return CUDA_SUCCESS;
}

/* ---- arrays, which textures and surfaces read: counted, and without values */

struct channels {
  int bits[4], kind;
};
struct array {
  uint64_t address;
  struct channels channels;
  struct extent extent;
  unsigned flags;
};
static int new_array(struct array **out, const struct channels *channels, struct extent extent, unsigned flags,
                     double more, const void *caller) {
  size_t bits = 0;
  for (int i = 0; i < 4; i++) bits += (size_t)channels->bits[i];
  size_t size = extent.width * (extent.height ? extent.height : 1) * (extent.depth ? extent.depth : 1) * bits / 8;
  size = (size_t)((double)size * more);
  *out = card_new_handle(sizeof **out);
  if (!*out || !size) return cuda_fail(CUDA_INVALID_VALUE);
  **out = (struct array){card_allocate(card_current(), size), *channels, extent, flags};
  if ((*out)->address) {
    card_note_outside(caller, (*out)->address, size, false);
    return CUDA_SUCCESS;
  }
  card_drop_handle(*out);
  *out = NULL;
  return cuda_fail(CUDA_OUT_OF_MEMORY);
}
API int cudaMallocArray(struct array **out, const struct channels *channels, size_t width, size_t height,
                        unsigned flags) {
  return new_array(out, channels, (struct extent){width, height, 0}, flags, 1, CALLER);
}
API int cudaMalloc3DArray(struct array **out, const struct channels *channels, struct extent extent, unsigned flags) {
  return new_array(out, channels, extent, flags, 1, CALLER);
}
/* Every level has a quarter of the one before, at most. */
API int cudaMallocMipmappedArray(struct array **out, const struct channels *channels, struct extent extent,
                                 unsigned levels, unsigned flags) {
  return new_array(out, channels, extent, flags, levels > 1 ? 4.0 / 3 : 1, CALLER);
}
API int cudaGetMipmappedArrayLevel(struct array **out, struct array *array, unsigned level) {
  (void)level;
  *out = array;
  return CUDA_SUCCESS;
}
API int cudaFreeArray(struct array *array) {
  if (!array) return CUDA_SUCCESS;
  card_forget_outside(array->address);
  card_free(array->address);
  card_drop_handle(array);
  return CUDA_SUCCESS;
}
API int cudaFreeMipmappedArray(struct array *array) { return cudaFreeArray(array); }
API int cudaArrayGetInfo(struct channels *channels, struct extent *extent, unsigned *flags, struct array *array) {
  if (channels) *channels = array->channels;
  if (extent) *extent = array->extent;
  if (flags) *flags = array->flags;
  return CUDA_SUCCESS;
}
API int cudaGetChannelDesc(struct channels *channels, struct array *array) {
  *channels = array->channels;
  return CUDA_SUCCESS;
}
API struct channels cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
  return (struct channels){{x, y, z, w}, kind};
}
static int new_object(uint64_t *object) {
  static uint64_t last;
  *object = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}
API int cudaCreateTextureObject(uint64_t *object, const void *resource, const void *texture, const void *view) {
  (void)resource, (void)texture, (void)view;
  return new_object(object);
}
API int cudaCreateSurfaceObject(uint64_t *object, const void *resource) {
  (void)resource;
  return new_object(object);
}
ACCEPTS(cudaDestroyTextureObject)
ACCEPTS(cudaDestroySurfaceObject)

/* ---- memory of another process */

API int cudaIpcGetMemHandle(struct ipc_handle *handle, void *address) {
  return card_ipc_handle((uint64_t)address, handle) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
API int cudaIpcOpenMemHandle(void **address, struct ipc_handle handle, unsigned flags) {
  (void)flags;
  *address = (void *)card_ipc_open(&handle);
  return *address ? CUDA_SUCCESS : cuda_fail(CUDA_OUT_OF_MEMORY);
}
API int cudaIpcCloseMemHandle(void *address) {
  return card_ipc_close((uint64_t)address) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_VALUE);
}
