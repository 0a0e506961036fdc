/* libcudart: devices, plain copies, kernels. Memory is in runtime_memory.c, other copies in runtime_copies.c, streams, events
 * and graphs in stream.c, rarely called functions in runtime_more.c. */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../../tracing/journal/journal.h"

static _Thread_local int last_error;

int cuda_fail(int status) {
  last_error = status;
  return status;
}

API int cudaGetLastError(void) {
  int status = last_error;
  last_error = CUDA_SUCCESS;
  return status;
}
API int cudaPeekAtLastError(void) { return last_error; }

static const struct {
  int status;
  const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "cudaSuccess", "no error"},
    {CUDA_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {CUDA_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {CUDA_NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {CUDA_INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {CUDA_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {CUDA_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {CUDA_PEER_ALREADY, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {CUDA_HOST_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {CUDA_HOST_NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {CUDA_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};

API const char *cudaGetErrorName(int status) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].status == status) return errors[i].name;
  return "cudaErrorUnknown";
}
API const char *cudaGetErrorString(int status) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].status == status) return errors[i].text;
  return "unknown error";
}

/* ---- devices */

API int cudaGetDeviceCount(int *count) {
  *count = card_count();
  return *count ? CUDA_SUCCESS : cuda_fail(CUDA_NO_DEVICE);
}
API int cudaGetDevice(int *device) {
  *device = card_current();
  return CUDA_SUCCESS;
}
API int cudaSetDevice(int device) { return card_set_current(device) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_DEVICE); }
API int cudaDeviceSynchronize(void) {
  card_synchronized();
  return CUDA_SUCCESS;
}
API int cudaDriverGetVersion(int *version) {
  *version = card_cuda_version();
  return CUDA_SUCCESS;
}
API int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
API int cudaProfilerStart(void) { return CUDA_SUCCESS; }
API int cudaProfilerStop(void) { return CUDA_SUCCESS; }
API int cudaDeviceGetPCIBusId(char *text, int size, int device) {
  snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}
API int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return CUDA_SUCCESS;
}
API int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)flags;
  return card_get(peer) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_DEVICE);
}
API int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  const struct card *card = card_get(device);
  if (!card) return cuda_fail(CUDA_INVALID_DEVICE);
  *value = device_attribute(card, device, attribute);
  return CUDA_SUCCESS;
}

static void uuid_of(int device, char uuid[16]) {
  memset(uuid, 0, 16);
  memcpy(uuid, "ullage", 6);
  uuid[15] = (char)device;
}

/* struct cudaDeviceProp: its size and the places of its fields differ between CUDA 12 and 13, its names do not. */
static int device_properties(struct device_properties *out, int device) {
  const struct card *card = card_get(device);
  if (!card) return cuda_fail(CUDA_INVALID_DEVICE);
  const int64_t *figure = card->figure;
  memset(out, 0, sizeof *out);
  memcpy(out->name, card->name, sizeof out->name);
  uuid_of(device, out->uuid);
  out->totalGlobalMem = (size_t)figure[CARD_TOTAL_BYTES];
  out->sharedMemPerBlock = 48 << 10;
  out->regsPerBlock = 65536;
  out->warpSize = 32;
  out->memPitch = 0x7fffffff;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
  out->maxThreadsDim[2] = 64;
  out->maxGridSize[0] = 0x7fffffff;
  out->maxGridSize[1] = out->maxGridSize[2] = 65535;
  out->totalConstMem = 64 << 10;
  out->major = (int)figure[CARD_CC_MAJOR];
  out->minor = (int)figure[CARD_CC_MINOR];
  out->textureAlignment = 512;
  out->texturePitchAlignment = 32;
  out->multiProcessorCount = (int)figure[CARD_SM_COUNT];
  out->canMapHostMemory = 1;
  out->surfaceAlignment = 512;
  out->concurrentKernels = 1;
  out->pciBusID = device + 1;
  out->asyncEngineCount = 2;
  out->unifiedAddressing = 1;
  out->memoryBusWidth = device_attribute(card, device, ATTRIBUTE_MEMORY_BUS_WIDTH);
  out->l2CacheSize = (int)figure[CARD_L2_BYTES];
  out->maxThreadsPerMultiProcessor = (int)figure[CARD_THREADS_PER_SM];
  out->streamPrioritiesSupported = 1;
  out->globalL1CacheSupported = out->localL1CacheSupported = 1;
  out->sharedMemPerMultiprocessor = (size_t)figure[CARD_SHARED_PER_SM_BYTES];
  out->regsPerMultiprocessor = (int)figure[CARD_REGISTERS_PER_SM];
  out->managedMemory = out->concurrentManagedAccess = out->computePreemptionSupported = 1;
  out->canUseHostPointerForRegisteredMem = out->cooperativeLaunch = 1;
  out->sharedMemPerBlockOptin = (size_t)figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES];
  out->maxBlocksPerMultiProcessor = (int)figure[CARD_BLOCKS_PER_SM];
  out->reservedSharedMemPerBlock = 1 << 10;
  out->hostRegisterSupported = out->memoryPoolsSupported = out->unifiedFunctionPointers = 1;
  out->ipcEventSupported = 1;
  out->clusterLaunch = figure[CARD_CC_MAJOR] >= 9;
#if ULLAGE_CUDA_MAJOR < 13
  out->clockRate = device_attribute(card, device, ATTRIBUTE_CLOCK_KHZ);
  out->memoryClockRate = device_attribute(card, device, ATTRIBUTE_MEMORY_CLOCK_KHZ);
  out->deviceOverlap = 1;
#endif
  return CUDA_SUCCESS;
}

#if ULLAGE_CUDA_MAJOR < 13
API int cudaGetDeviceProperties_v2(struct device_properties *out, int device) { return device_properties(out, device); }
#else
API int cudaGetDeviceProperties(struct device_properties *out, int device) { return device_properties(out, device); }
#endif

/* ---- copies */

int runtime_copy(void *destination, const void *source, size_t size) {
  if (size && card_device_of((uint64_t)source) >= 0 && card_device_of((uint64_t)destination) < 0)
    journal_value_read(size);
  card_copy(destination, source, size);
  return CUDA_SUCCESS;
}
API int cudaMemcpy(void *destination, const void *source, size_t size, int kind) {
  (void)kind;
  return runtime_copy(destination, source, size);
}
API int cudaMemcpyAsync(void *destination, const void *source, size_t size, int kind, void *stream) {
  (void)kind, (void)stream;
  return runtime_copy(destination, source, size);
}
API int cudaMemset(void *address, int value, size_t size) {
  card_fill(address, value, size);
  return CUDA_SUCCESS;
}
API int cudaMemsetAsync(void *address, int value, size_t size, void *stream) {
  (void)stream;
  return cudaMemset(address, value, size);
}
ACCEPTS(cudaMemcpyToSymbol)
ACCEPTS(cudaMemcpyToSymbolAsync)

/* A device variable lives in the module's image, which the context's size covers: an address, no memory. */
API int cudaGetSymbolAddress(void **address, const void *symbol) {
  static uint64_t scratch[MAX_DEVICES];
  int device = card_current();
  (void)symbol;
  if (!scratch[device]) scratch[device] = card_reserve(device, PAGE_BYTES);
  *address = (void *)scratch[device];
  return CUDA_SUCCESS;
}

/* ---- kernels: registered by name, launched into nothing */

static _Thread_local struct {
  struct dim3 grid, block;
  size_t shared;
  void *stream;
} pushed;

API unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, void *stream) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
  return 0;
}
API int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
  return CUDA_SUCCESS;
}
API void **__cudaRegisterFatBinary(void *image) {
  static void *registered;
  (void)image;
  return &registered;
}
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
API char __cudaInitModule(void **handle) {
  (void)handle;
  return 1;
}
API void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *name, int limit,
                                void *thread, void *block, void *block_dim, void *grid_dim, int *size) {
  (void)handle, (void)device_function, (void)limit, (void)thread, (void)block, (void)block_dim, (void)grid_dim,
      (void)size;
  card_name_kernel(function, name);
}
API void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t size,
                           int constant, int global) {
  (void)handle, (void)host, (void)address, (void)name, (void)external, (void)size, (void)constant, (void)global;
}
API int __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return CUDA_SUCCESS;
}
API int cudaGetKernel(void **kernel, const void *function) { return __cudaGetKernel(kernel, function); }

static int launch(const void *function, void **arguments) {
  (void)arguments;
  card_launch(function);
  return CUDA_SUCCESS;
}
API int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments, size_t shared,
                         void *stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return launch(function, arguments);
}
API int __cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments, size_t shared,
                           void *stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return launch(function, arguments);
}
API int cudaLaunchCooperativeKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
                                    size_t shared, void *stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return launch(function, arguments);
}
API int cudaLaunchKernelExC(const struct launch_config *config, const void *function, void **arguments) {
  (void)config;
  return launch(function, arguments);
}

struct function_attributes {
  size_t shared_bytes, const_bytes, local_bytes;
  int max_threads_per_block, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared_bytes, carveout;
  int cluster_must_be_set, cluster_width, cluster_height, cluster_depth, cluster_policy, non_portable_cluster;
};
API int cudaFuncGetAttributes(struct function_attributes *out, const void *function) {
  const struct card *card = card_get(card_current());
  (void)function;
  if (!card) return cuda_fail(CUDA_NO_DEVICE);
  memset(out, 0, sizeof *out);
  out->max_threads_per_block = 1024;
  out->registers = 32;
  /* CUB divides by these and picks its tuning from them. */
  out->ptx_version = out->binary_version = code_version(card);
  out->max_dynamic_shared_bytes = (int)card->figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES];
  return CUDA_SUCCESS;
}
ACCEPTS(cudaFuncSetAttribute)
ACCEPTS(cudaFuncSetCacheConfig)
ACCEPTS(cudaKernelSetAttributeForDevice)

API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_threads,
                                                      size_t shared) {
  (void)function;
  *blocks = resident_blocks(card_get(card_current()), block_threads, shared);
  return CUDA_SUCCESS;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int block_threads,
                                                               size_t shared, unsigned flags) {
  (void)flags;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_threads, shared);
}

/* ---- the driver's functions, found by name */

API int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                         unsigned long long flags, int *result) {
  static int (*find)(const char *, void **, int, uint64_t, int *);
  void *driver = find ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver) find = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
  *function = NULL;
  if (find) find(symbol, function, (int)version, flags, NULL);
  if (result) *result = *function ? 0 : 1; /* found, not found */
  return CUDA_SUCCESS;
}
API int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, (unsigned)card_cuda_version(), flags, result);
}
