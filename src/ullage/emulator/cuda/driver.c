/* libcuda: virtual memory management (expandable segments), contexts, run-time compiled modules, pointers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "runtime.h"

/* ---- devices and contexts: one context a device, its size is the card's figure */

static char contexts[MAX_DEVICES];
static int device_of_context(void *context) {
  char *place = context;
  return place >= contexts && place < contexts + MAX_DEVICES ? (int)(place - contexts) : 0;
}

API int cuInit(unsigned flags) {
  (void)flags;
  return card_count() ? CUDA_SUCCESS : CUDA_NO_DEVICE;
}
API int cuDriverGetVersion(int *version) {
  *version = card_cuda_version();
  return CUDA_SUCCESS;
}
API int cuDeviceGetCount(int *count) {
  *count = card_count();
  return CUDA_SUCCESS;
}
API int cuDeviceGet(int *device, int ordinal) {
  if (!card_get(ordinal)) return CUDA_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
API int cuDeviceGetName(char *name, int size, int device) {
  if (!card_get(device)) return CUDA_INVALID_DEVICE;
  snprintf(name, (size_t)size, "%s", card_get(device)->name);
  return CUDA_SUCCESS;
}
API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  if (!card_get(device)) return CUDA_INVALID_DEVICE;
  *bytes = (size_t)card_get(device)->figure[CARD_TOTAL_BYTES];
  return CUDA_SUCCESS;
}
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (!card_get(device)) return CUDA_INVALID_DEVICE;
  *value = device_attribute(card_get(device), device, attribute);
  return CUDA_SUCCESS;
}
API int cuDeviceGetUuid(char *uuid, int device) {
  memset(uuid, 0, 16);
  memcpy(uuid, "ullage", 6);
  uuid[15] = (char)device;
  return CUDA_SUCCESS;
}
API int cuDeviceGetUuid_v2(char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
API int cuDevicePrimaryCtxRetain(void **context, int device) {
  if (!card_get(device)) return CUDA_INVALID_DEVICE;
  *context = contexts + device;
  return CUDA_SUCCESS;
}
ACCEPTS(cuDevicePrimaryCtxRelease_v2) ACCEPTS(cuDevicePrimaryCtxSetFlags_v2)
API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  const struct card *card = card_get(device);
  *flags = 0;
  *active = card && card_peak_used_bytes(device) > card->figure[CARD_CONTEXT_BYTES];
  return CUDA_SUCCESS;
}
API int cuCtxGetCurrent(void **context) {
  *context = contexts + card_current();
  return CUDA_SUCCESS;
}
API int cuCtxSetCurrent(void *context) {
  if (context) card_set_current(device_of_context(context));
  return CUDA_SUCCESS;
}
API int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
API int cuCtxPopCurrent_v2(void **context) { return cuCtxGetCurrent(context); }
API int cuCtxGetDevice(int *device) {
  *device = card_current();
  return CUDA_SUCCESS;
}
API int cuCtxGetApiVersion(void *context, unsigned *version) {
  (void)context;
  *version = (unsigned)card_cuda_version();
  return CUDA_SUCCESS;
}
API int cuStreamGetCtx(void *stream, void **context) {
  (void)stream;
  return cuCtxGetCurrent(context);
}
ACCEPTS(cuCtxSynchronize) ACCEPTS(cuStreamSynchronize) ACCEPTS(cuCtxSetLimit)
ACCEPTS(cuLogsRegisterCallback) ACCEPTS(cuLogsUnregisterCallback) ACCEPTS(cuStreamWriteValue32_v2) ACCEPTS(cuStreamWaitValue32_v2)

static const char *error_name(int status) {
  return status == CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : status == CUDA_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
         : status == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_UNKNOWN";
}
API int cuGetErrorName(int status, const char **text) {
  *text = error_name(status);
  return CUDA_SUCCESS;
}
API int cuGetErrorString(int status, const char **text) {
  *text = status == CUDA_OUT_OF_MEMORY ? "out of memory" : status == CUDA_NOT_SUPPORTED ? "operation not supported" : error_name(status);
  return CUDA_SUCCESS;
}

/* ---- memory */

API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = (size_t)card_free_bytes(card_current());
  *total_bytes = (size_t)card_get(card_current())->figure[CARD_TOTAL_BYTES];
  return CUDA_SUCCESS;
}
API int cuMemAlloc_v2(uint64_t *address, size_t size) {
  *address = card_allocate(card_current(), size);
  return *address ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuMemFree_v2(uint64_t address) { return card_free(address) ? CUDA_SUCCESS : CUDA_INVALID_VALUE; }
API int cuMemsetD32Async(uint64_t address, unsigned value, size_t count, void *stream) {
  (void)stream;
  card_fill((void *)address, (int)value, count * 4);
  return CUDA_SUCCESS;
}
API int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream) {
  (void)stream;
  card_fill((void *)address, value, count);
  return CUDA_SUCCESS;
}
API int cuMemcpyDtoHAsync_v2(void *destination, uint64_t source, size_t size, void *stream) {
  (void)stream;
  card_copy(destination, (void *)source, size);
  return CUDA_SUCCESS;
}
API int cuMemcpyHtoDAsync_v2(uint64_t destination, const void *source, size_t size, void *stream) {
  (void)stream;
  card_copy((void *)destination, source, size);
  return CUDA_SUCCESS;
}

/* struct CUmemAllocationProp: what is read or written of it. */
struct allocation_properties {
  int type, handle_types, location_type, location_id;
  char rest[16];
};

API int cuMemGetAllocationGranularity(size_t *granularity, const struct allocation_properties *properties, int option) {
  (void)properties, (void)option;
  *granularity = PAGE_BYTES;
  return CUDA_SUCCESS;
}
API int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t hint, unsigned long long flags) {
  (void)alignment, (void)hint, (void)flags;
  *address = card_reserve(card_current(), size);
  return *address ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuMemAddressFree(uint64_t address, size_t size) { return card_unreserve(address, size) ? CUDA_SUCCESS : CUDA_INVALID_VALUE; }
API int cuMemCreate(uint64_t *handle, size_t size, const struct allocation_properties *properties, unsigned long long flags) {
  (void)flags;
  if (size % PAGE_BYTES) return CUDA_INVALID_VALUE;
  *handle = card_create_pages(properties->location_id, size);
  return *handle ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuMemRelease(uint64_t handle) { return card_release_pages(handle) ? CUDA_SUCCESS : CUDA_INVALID_VALUE; }
API int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
  (void)offset, (void)flags;
  return card_map(address, size, handle) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuMemUnmap(uint64_t address, size_t size) { return card_unmap(address, size) ? CUDA_SUCCESS : CUDA_INVALID_VALUE; }
ACCEPTS(cuMemSetAccess)
API int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
  *handle = card_mapped_handle((uint64_t)address);
  return *handle ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuMemGetAllocationPropertiesFromHandle(struct allocation_properties *properties, uint64_t handle) {
  enum { PINNED = 1, ON_DEVICE = 1 };
  (void)handle;
  *properties = (struct allocation_properties){PINNED, 0, ON_DEVICE, card_current(), {0}};
  return CUDA_SUCCESS;
}
API int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
  uint64_t found;
  size_t bytes;
  if (!card_range_of(address, &found, &bytes)) return CUDA_INVALID_VALUE;
  if (base) *base = found;
  if (size) *size = bytes;
  return CUDA_SUCCESS;
}
API int cuPointerGetAttribute(void *out, int attribute, uint64_t address) {
  enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, BUFFER = 7, MANAGED = 8, ORDINAL = 9, START = 11, SIZE = 12, MAPPED = 13 };
  enum { HOST = 1, DEVICE = 2 };
  int device = card_device_of(address);
  bool pinned = device < 0 && card_is_pinned((void *)address);
  uint64_t base = address;
  size_t size = 0;
  if (device < 0 && !pinned) return CUDA_INVALID_VALUE;
  card_range_of(address, &base, &size);
  switch (attribute) {
    case CONTEXT: *(void **)out = contexts + (device < 0 ? 0 : device); break;
    case MEMORY_TYPE: *(unsigned *)out = pinned ? HOST : DEVICE; break;
    case DEVICE_POINTER: case HOST_POINTER: *(uint64_t *)out = address; break;
    case BUFFER: *(uint64_t *)out = base; break;
    case MANAGED: *(int *)out = 0; break;
    case ORDINAL: *(int *)out = device < 0 ? 0 : device; break;
    case START: *(uint64_t *)out = base; break;
    case SIZE: *(size_t *)out = size; break;
    case MAPPED: *(int *)out = 1; break;
    default: return CUDA_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

/* ---- modules: an image is accepted unread, its functions are names */

API int cuModuleLoadData(void **module, const void *image) {
  (void)image;
  *module = card_new_handle(16);
  return *module ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
  (void)count, (void)options, (void)values;
  return cuModuleLoadData(module, image);
}
API int cuModuleLoad(void **module, const char *path) { return cuModuleLoadData(module, path); }
API int cuModuleUnload(void *module) {
  card_drop_handle(module);
  return CUDA_SUCCESS;
}
API int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)name;
  *function = module;
  return CUDA_SUCCESS;
}
API int cuModuleGetGlobal_v2(uint64_t *address, size_t *size, void *module, const char *name) {
  (void)module, (void)name;
  if (size) *size = 0;
  if (address) *address = card_reserve(card_current(), PAGE_BYTES);
  return CUDA_SUCCESS;
}
API int cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
  (void)count, (void)options, (void)values;
  *state = card_new_handle(16);
  return *state ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuLinkComplete(void *state, void **image, size_t *size) {
  *image = state;
  *size = 16;
  return CUDA_SUCCESS;
}
API int cuLinkDestroy(void *state) {
  card_drop_handle(state);
  return CUDA_SUCCESS;
}
ACCEPTS(cuLinkAddData_v2)
API int cuLibraryLoadData(void **library, const void *code, void *jit, void **jit_values, unsigned jit_count, void *options, void **values, unsigned count) {
  (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  return cuModuleLoadData(library, code);
}
API int cuLibraryUnload(void *library) { return cuModuleUnload(library); }
API int cuLibraryGetKernel(void **kernel, void *library, const char *name) { return cuModuleGetFunction(kernel, library, name); }
API int cuKernelGetFunction(void **function, void *kernel) {
  *function = kernel;
  return CUDA_SUCCESS;
}

API int cuFuncGetAttribute(int *value, int attribute, void *function) {
  enum { MAX_THREADS = 0, SHARED = 1, CONSTANT = 2, LOCAL = 3, REGISTERS = 4, PTX = 5, BINARY = 6, MAX_DYNAMIC_SHARED = 8 };
  const int64_t *figure = card_get(card_current())->figure;
  (void)function;
  *value = attribute == MAX_THREADS                         ? 1024
           : attribute == REGISTERS                         ? 32
           : attribute == PTX || attribute == BINARY        ? code_version(card_get(card_current()))
           : attribute == MAX_DYNAMIC_SHARED                ? (int)figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES]
                                                            : 0;
  return CUDA_SUCCESS;
}
ACCEPTS(cuFuncSetAttribute) ACCEPTS(cuFuncSetCacheConfig) ACCEPTS(cuFuncLoad)
API int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  (void)device;
  return cuFuncGetAttribute(value, attribute, kernel);
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block_threads, size_t shared) {
  (void)function;
  *blocks = resident_blocks(card_get(card_current()), block_threads, shared);
  return CUDA_SUCCESS;
}
API int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *config) {
  (void)function, (void)config;
  *clusters = (int)card_get(card_current())->figure[CARD_SM_COUNT];
  return CUDA_SUCCESS;
}
LAUNCHES(cuLaunchKernel) LAUNCHES(cuLaunchKernelEx) LAUNCHES(cuLaunchCooperativeKernel)
ACCEPTS(cuTensorMapEncodeTiled) ACCEPTS(cuTensorMapEncodeIm2col)

/* ---- functions by name */

API int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  static const char *const suffixes[] = {"_v3", "_v2", ""};
  (void)version, (void)flags;
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = NULL;
  for (int i = 0; driver && !*function && i < 3; i++) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
    *function = dlsym(driver, name);
  }
  if (status) *status = *function ? 0 : 1;
  if (*function) return CUDA_SUCCESS;
  card_unwritten("cuda", symbol, 0);
  return CUDA_NOT_FOUND;
}
API int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
