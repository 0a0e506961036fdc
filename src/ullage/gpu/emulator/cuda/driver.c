/* libcuda: virtual memory management (expandable segments), contexts, run-time compiled modules, pointers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

/* ---- devices and contexts: one context a device, its size is the GPU's figure */

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
ACCEPTS(cuDevicePrimaryCtxRelease_v2)
ACCEPTS(cuDevicePrimaryCtxSetFlags_v2) API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  const struct card *card = card_get(device);
  *flags = 0;
  *active = card && card_peak_used_bytes(device) > card->figure[CARD_CONTEXT_BYTES];
  return CUDA_SUCCESS;
}
/* A thread has a stack of contexts; where it is empty, the runtime's device is the current one. */
enum { MOST_PUSHED = 64 };
static _Thread_local int pushed[MOST_PUSHED], pushed_count;
API int cuCtxGetCurrent(void **context) {
  *context = contexts + card_current();
  return CUDA_SUCCESS;
}
API int cuCtxSetCurrent(void *context) {
  if (context) card_set_current(device_of_context(context));
  return CUDA_SUCCESS;
}
API int cuCtxPushCurrent_v2(void *context) {
  if (!context || pushed_count == MOST_PUSHED) return CUDA_INVALID_VALUE;
  pushed[pushed_count++] = card_current();
  return cuCtxSetCurrent(context);
}
API int cuCtxPopCurrent_v2(void **context) {
  if (context) cuCtxGetCurrent(context);
  if (pushed_count) card_set_current(pushed[--pushed_count]);
  return CUDA_SUCCESS;
}
/* Every context of a device is its primary one: its size is counted once. */
API int cuCtxCreate_v2(void **context, unsigned flags, int device) {
  (void)flags;
  int status = cuDevicePrimaryCtxRetain(context, device);
  return status == CUDA_SUCCESS ? cuCtxPushCurrent_v2(*context) : status;
}
API int cuCtxCreate_v3(void **context, void *affinity, int count, unsigned flags, int device) {
  (void)affinity, (void)count;
  return cuCtxCreate_v2(context, flags, device);
}
API int cuCtxCreate_v4(void **context, void *parameters, unsigned flags, int device) {
  (void)parameters;
  return cuCtxCreate_v2(context, flags, device);
}
API int cuCtxDestroy_v2(void *context) {
  void *unused;
  (void)context;
  return cuCtxPopCurrent_v2(&unused);
}
API int cuCtxGetFlags(unsigned *flags) {
  *flags = 0;
  return CUDA_SUCCESS;
}
API int cuCtxGetId(void *context, unsigned long long *id) {
  *id = (unsigned long long)(context ? device_of_context(context) : card_current()) + 1;
  return CUDA_SUCCESS;
}
API int cuDeviceComputeCapability(int *major, int *minor, int device) {
  if (!card_get(device)) return CUDA_INVALID_DEVICE;
  *major = (int)card_get(device)->figure[CARD_CC_MAJOR];
  *minor = (int)card_get(device)->figure[CARD_CC_MINOR];
  return CUDA_SUCCESS;
}
API int cuCtxGetDevice_v2(int *device, void *context) {
  *device = context ? device_of_context(context) : card_current();
  return CUDA_SUCCESS;
}
API int cuCtxEnablePeerAccess(void *context, unsigned flags) {
  (void)context, (void)flags;
  return CUDA_SUCCESS;
}
ACCEPTS(cuCtxDisablePeerAccess)
ACCEPTS(cuCtxSetFlags)
ACCEPTS(cuCtxSetCacheConfig)
ACCEPTS(cuCtxSetSharedMemConfig)
ACCEPTS(cuDevicePrimaryCtxRelease)
ACCEPTS(cuDevicePrimaryCtxSetFlags)
ACCEPTS(cuDevicePrimaryCtxReset)
ACCEPTS(cuDevicePrimaryCtxReset_v2)
ACCEPTS(cuCtxResetPersistingL2Cache) ACCEPTS(cuProfilerInitialize) API int cuCtxGetDevice(int *device) {
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
API int cuCtxSynchronize(void) {
  card_synchronized();
  return CUDA_SUCCESS;
}
API int cuCtxSynchronize_v2(void *context) {
  (void)context;
  return cuCtxSynchronize();
}
API int cuStreamSynchronize(void *stream) {
  (void)stream;
  return cuCtxSynchronize();
}
ACCEPTS(cuLogsRegisterCallback)
ACCEPTS(cuLogsUnregisterCallback)
ACCEPTS(cuStreamWriteValue32_v2)
ACCEPTS(cuStreamWaitValue32_v2)

static const char *error_name(int status) {
  return status == CUDA_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
         : status == CUDA_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
         : status == CUDA_SUCCESS       ? "CUDA_SUCCESS"
                                        : "CUDA_ERROR_UNKNOWN";
}
API int cuGetErrorName(int status, const char **text) {
  *text = error_name(status);
  return CUDA_SUCCESS;
}
API int cuGetErrorString(int status, const char **text) {
  *text = status == CUDA_OUT_OF_MEMORY   ? "out of memory"
          : status == CUDA_NOT_SUPPORTED ? "operation not supported"
                                         : error_name(status);
  return CUDA_SUCCESS;
}

/* ---- virtual memory */

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
API int cuMemAddressFree(uint64_t address, size_t size) {
  return card_unreserve(address, size) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
API int cuMemCreate(uint64_t *handle, size_t size, const struct allocation_properties *properties,
                    unsigned long long flags) {
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
API int cuMemUnmap(uint64_t address, size_t size) {
  return card_unmap(address, size) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
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
  struct managed managed;
  if (card_managed_of((void *)address, &managed)) found = managed.base, bytes = managed.size;
  else if (!card_pool_block(address, &found, &bytes) && !card_range_of(address, &found, &bytes))
    return CUDA_INVALID_VALUE;
  if (base) *base = found;
  if (size) *size = bytes;
  return CUDA_SUCCESS;
}
API int cuPointerGetAttribute(void *out, int attribute, uint64_t address) {
  enum {
    CONTEXT = 1,
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    HOST_POINTER = 4,
    BUFFER = 7,
    MANAGED = 8,
    ORDINAL = 9,
    START = 11,
    SIZE = 12,
    MAPPED = 13
  };
  enum { HOST = 1, DEVICE = 2 };
  int device = card_device_of(address);
  bool managed = device < 0 && card_managed_of((void *)address, NULL);
  bool pinned = device < 0 && !managed && card_is_pinned((void *)address);
  uint64_t base = address;
  size_t size = 0;
  if (device < 0 && !pinned && !managed) return CUDA_INVALID_VALUE;
  cuMemGetAddressRange_v2(&base, &size, address);
  switch (attribute) {
    case CONTEXT: *(void **)out = contexts + (device < 0 ? 0 : device); break;
    case MEMORY_TYPE: *(unsigned *)out = pinned ? HOST : DEVICE; break;
    case HOST_POINTER:
      if (device >= 0) return CUDA_INVALID_VALUE;
      *(uint64_t *)out = address;
      break;
    case DEVICE_POINTER: *(uint64_t *)out = address; break;
    case BUFFER: *(uint64_t *)out = base; break;
    case MANAGED: *(int *)out = managed; break;
    case ORDINAL: *(int *)out = device < 0 ? 0 : device; break;
    case START: *(uint64_t *)out = base; break;
    case SIZE: *(size_t *)out = size; break;
    case MAPPED: *(int *)out = 1; break;
    default: return CUDA_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
/* An address that is none of CUDA's has zeroes for attributes. */
API int cuPointerGetAttributes(unsigned count, int *attributes, void **out, uint64_t address) {
  for (unsigned i = 0; i < count; i++)
    if (cuPointerGetAttribute(out[i], attributes[i], address) != CUDA_SUCCESS) *(int *)out[i] = 0;
  return CUDA_SUCCESS;
}
ACCEPTS(cuPointerSetAttribute)

/* ---- functions by name */

/* The functions whose later form came in a later version of CUDA, which a caller may be too old for (cudaTypedefs.h). */
static const struct {
  const char *name;
  int since;
} later[] = {
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuCtxGetDevice_v2", 13000},
    {"cuCtxSynchronize_v2", 13000},
    {"cuEventElapsedTime_v2", 12080},
    {"cuGetProcAddress_v2", 12000},
    {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphAddNode_v2", 12030},
    {"cuGraphAddNode_v3", 13040},
    {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000},
    {"cuGraphGetEdges_v2", 12030},
    {"cuGraphInstantiate_v2", 11000},
    {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuGraphNodeSetParams_v2", 13040},
    {"cuGraphRemoveDependencies_v2", 12030},
    {"cuLaunchHostFunc_v2", 13010},
    {"cuMemAdvise_v2", 12020},
    {"cuMemPrefetchAsync_v2", 12020},
    {"cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuMulticastBindAddr_v2", 13010},
    {"cuMulticastBindMem_v2", 13010},
    {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamGetCtx_v2", 12050},
    {"cuStreamUpdateCaptureDependencies_v2", 12030},
};
static bool is_too_new(const char *name, int version) {
  for (size_t i = 0; version && i < sizeof later / sizeof *later; i++)
    if (strcmp(later[i].name, name) == 0) return version < later[i].since;
  return false;
}

/* Per-thread default streams (flag 2) make no difference where everything is done at once. */
API int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
  (void)flags;
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = NULL;
  for (int i = 0; driver && *symbol && !*function && i < 4; i++) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
    if (!is_too_new(name, version)) *function = dlsym(driver, name);
  }
  if (status) *status = *function ? 0 : 1;
  if (*function) return CUDA_SUCCESS;
  if (*symbol) card_unwritten("cuda", symbol, 0);
  return CUDA_NOT_FOUND;
}
API int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

/* NVIDIA's own runtime, linked statically into a library, asks the driver in undocumented tables to prove that it is NVIDIA's.
 * This one is not, and does not say so: that library's CUDA calls all fail with "operation not supported", and the report
 * names it. A library that links libcudart.so gets the emulated one and never comes here. */
API int cuGetExportTable(const void **table, const void *id) {
  (void)id;
  Dl_info caller;
  const char *name = dladdr(__builtin_return_address(0), &caller) && caller.dli_fname ? caller.dli_fname : "a library";
  const char *file = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
  char text[100];
  snprintf(text, sizeof text, "cuGetExportTable (%.40s links the runtime statically)", file);
  *table = NULL;
  return card_unwritten("cuda", text, CUDA_NOT_SUPPORTED);
}
