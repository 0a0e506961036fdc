/* libcudart: rarely called functions: limits, flags, occupancy, libraries of code, cooperative launches. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

/* ---- devices */

// clang-format off: a list of macros
ACCEPTS(cudaSetDeviceFlags) ACCEPTS(cudaSetValidDevices) ACCEPTS(cudaDeviceDisablePeerAccess) ACCEPTS(cudaDeviceSetCacheConfig)
ACCEPTS(cudaDeviceSetSharedMemConfig) ACCEPTS(cudaFuncSetSharedMemConfig) ACCEPTS(cudaCtxResetPersistingL2Cache)
ACCEPTS(cudaDeviceFlushGPUDirectRDMAWrites) ACCEPTS(cudaDeviceGraphMemTrim) ACCEPTS(cudaThreadSetCacheConfig)
    // clang-format on

    API int cudaInitDevice(int device, unsigned flags, unsigned more) {
  (void)flags, (void)more;
  return card_get(device) ? CUDA_SUCCESS : cuda_fail(CUDA_INVALID_DEVICE);
}
API int cudaThreadSynchronize(void) {
  card_synchronized();
  return CUDA_SUCCESS;
}
static int zero(int *out) {
  *out = 0;
  return CUDA_SUCCESS;
}
API int cudaGetDeviceFlags(unsigned *flags) { return zero((int *)flags); }
API int cudaDeviceGetCacheConfig(int *config) { return zero(config); }
API int cudaThreadGetCacheConfig(int *config) { return zero(config); }
API int cudaDeviceGetSharedMemConfig(int *config) {
  *config = 1; /* banks of four bytes */
  return CUDA_SUCCESS;
}
API int cudaChooseDevice(int *device, const void *properties) {
  (void)properties;
  return zero(device);
}
API int cudaDeviceGetByPCIBusId(int *device, const char *text) {
  const char *bus = strchr(text, ':');
  long number = bus ? strtol(bus + 1, NULL, 16) - 1 : -1;
  if (!card_get((int)number)) return cuda_fail(CUDA_INVALID_DEVICE);
  *device = (int)number;
  return CUDA_SUCCESS;
}
API int cudaDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
  enum { ACCESS = 2, ATOMICS = 3 };
  if (!card_get(device) || !card_get(peer)) return cuda_fail(CUDA_INVALID_DEVICE);
  *value = device != peer && (attribute == ACCESS || attribute == ATOMICS);
  return CUDA_SUCCESS;
}

/* Stack, printf buffer, heap, and so on: what a program reads back is what it has set. */
enum { LIMITS = 16 };
static size_t limits[LIMITS] = {1024, (size_t)1 << 20, (size_t)8 << 20, 2, 2048, 128, 0};
API int cudaDeviceGetLimit(size_t *value, int limit) {
  if (limit < 0 || limit >= LIMITS) return cuda_fail(CUDA_INVALID_VALUE);
  *value = limits[limit];
  return CUDA_SUCCESS;
}
API int cudaDeviceSetLimit(int limit, size_t value) {
  if (limit < 0 || limit >= LIMITS) return cuda_fail(CUDA_INVALID_VALUE);
  limits[limit] = value;
  return CUDA_SUCCESS;
}
API int cudaThreadGetLimit(size_t *value, int limit) { return cudaDeviceGetLimit(value, limit); }
API int cudaThreadSetLimit(int limit, size_t value) { return cudaDeviceSetLimit(limit, value); }

/* ---- streams */

API int cudaStreamGetId(void *stream, unsigned long long *id) {
  *id = (unsigned long long)stream;
  return CUDA_SUCCESS;
}
API int cudaStreamGetAttribute(void *stream, int attribute, void *value) {
  (void)stream, (void)attribute;
  memset(value, 0, 64); /* union cudaLaunchAttributeValue */
  return CUDA_SUCCESS;
}
// clang-format off: a list of macros
ACCEPTS(cudaStreamCopyAttributes)
// clang-format on

/* ---- kernels */

API int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function, int blocks, int threads) {
  const int64_t *figure = card_get(card_current())->figure;
  int64_t share =
      figure[CARD_SHARED_PER_SM_BYTES] / (blocks > 0 ? blocks : 1) - (1 << 10); /* 1 KiB a block is the system's */
  (void)function, (void)threads;
  if (share > figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES]) share = figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES];
  *bytes = share > 0 ? (size_t)share : 0;
  return CUDA_SUCCESS;
}
API int cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const void *config) {
  (void)function, (void)config;
  *clusters = (int)card_get(card_current())->figure[CARD_SM_COUNT];
  return CUDA_SUCCESS;
}
API int cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const void *config) {
  (void)function, (void)config;
  *size = 8; /* what every GPU with clusters can do */
  return CUDA_SUCCESS;
}
API int cudaGetFuncBySymbol(void **function, const void *symbol) {
  *function = (void *)symbol;
  return CUDA_SUCCESS;
}
API int cudaFuncGetName(const char **name, const void *function) {
  const char *known = card_kernel_name(function);
  *name = known ? known : "";
  return known ? CUDA_SUCCESS : cuda_fail(98); /* invalid device function */
}
// clang-format off: a list of macros
LAUNCHES(cudaLaunchCooperativeKernelMultiDevice)
// clang-format on

/* ---- variables of nvcc's code */

API void __cudaRegisterManagedVar(void **handle, void **host, void *address, const char *name, int external,
                                  size_t size, int constant, int global) {
  (void)handle, (void)address, (void)name, (void)external, (void)constant, (void)global;
  *host = card_managed_allocate(size ? size : 1);
}
API void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t size) {
  (void)handle, (void)name, (void)host, (void)size;
}
// clang-format off: a list of macros
ACCEPTS(__cudaRegisterUnifiedTable) ACCEPTS(__cudaInitManagedRuntime)

/* ---- libraries of code, which the driver has */

FORWARD("libcuda.so.1", cudaLibraryLoadData, cuLibraryLoadData) FORWARD("libcuda.so.1", cudaLibraryLoadFromFile, cuLibraryLoadFromFile)
FORWARD("libcuda.so.1", cudaLibraryUnload, cuLibraryUnload) FORWARD("libcuda.so.1", cudaLibraryGetKernel, cuLibraryGetKernel)
FORWARD("libcuda.so.1", cudaLibraryGetGlobal, cuLibraryGetGlobal) FORWARD("libcuda.so.1", cudaLibraryGetManaged, cuLibraryGetManaged)
FORWARD("libcuda.so.1", cudaLibraryGetKernelCount, cuLibraryGetKernelCount)
    // clang-format on
