/* A CUDA that does nothing, as fast as can be: what PyTorch's allocator needs to run by itself, and no more.
 *
 * One source is libcudart.so, libcuda.so and libnvidia-ml.so. Memory has addresses that ascend and no limit, so that
 * what is measured over it is the allocator's own time. It is not ullage's emulator, which does more at every call.
 */
#include <stdint.h>
#include <string.h>

enum { NOT_SUPPORTED = 801 };
static const uint64_t TOTAL = (uint64_t)1 << 40;
static uint64_t next_address = 0x700000000000, next_reservation = 0x100000000000;
long null_cuda_calls; /* of functions that give memory or take it back */

static int success(void) { return 0; }

/* ---- the runtime */

int cudaMalloc(void **place, size_t size) {
  null_cuda_calls++;
  *place = (void *)next_address;
  next_address += size;
  return 0;
}
int cudaFree(void *address) {
  null_cuda_calls += address != 0;
  return 0;
}
int cudaMemGetInfo(size_t *room, size_t *total) {
  *room = *total = TOTAL;
  return 0;
}
int cudaGetDeviceCount(int *count) {
  *count = 1;
  return 0;
}
int cudaGetDevice(int *device) {
  *device = 0;
  return 0;
}
int cudaDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}
int cudaGetDeviceProperties(void *place, int device) {
  (void)device;
  memset(place, 0, 300);
  strcpy(place, "null");                          /* char name[256]; the UUID and the LUID */
  memcpy((char *)place + 288, &TOTAL, sizeof TOTAL); /* size_t totalGlobalMem */
  return 0;
}
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = *greatest = 0;
  return 0;
}
int cudaStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = 0;
  return 0;
}
int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  (void)device, (void)peer;
  *can = 0;
  return 0;
}
const char *cudaGetErrorString(int error) { return error ? "not in the null CUDA" : "no error"; }
const char *cudaGetErrorName(int error) { return cudaGetErrorString(error); }
int cudaSetDevice(int device) { return device; }
int cudaGetLastError(void) { return 0; }
int cudaDeviceSynchronize(void) { return 0; }
int cudaStreamSynchronize(void *stream) { return stream ? 0 : 0; }
int cudaStreamQuery(void *stream) { return stream ? 0 : 0; }
int cudaThreadExchangeStreamCaptureMode(int *mode) { return mode ? 0 : 0; }

/* ---- the driver: virtual memory, for expandable segments */

int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t wanted, uint64_t flags) {
  (void)alignment, (void)wanted, (void)flags;
  *address = next_reservation;
  next_reservation += (size + (1 << 30)) & ~(uint64_t)((1 << 30) - 1);
  return 0;
}
int cuMemCreate(uint64_t *handle, size_t size, const void *properties, uint64_t flags) {
  static uint64_t last;
  (void)size, (void)properties, (void)flags;
  null_cuda_calls++;
  *handle = ++last;
  return 0;
}
int cuMemRelease(uint64_t handle) {
  null_cuda_calls++;
  return handle ? 0 : 1;
}
int cuMemGetAllocationGranularity(size_t *size, const void *properties, int option) {
  (void)properties, (void)option;
  *size = 2 << 20;
  return 0;
}
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 0;
  return 0;
}
int cuGetErrorString(int error, const char **text) {
  *text = cudaGetErrorString(error);
  return 0;
}
int cuCtxGetCurrent(void **context) {
  static char one;
  *context = &one;
  return 0;
}

#define WRITTEN(name) {#name, (void *)name},
static const struct {
  const char *name;
  void *function;
} WRITTEN_FUNCTIONS[] = {WRITTEN(cuMemAddressReserve) WRITTEN(cuMemCreate) WRITTEN(cuMemRelease) WRITTEN(cuDeviceGet)
                         WRITTEN(cuDeviceGetAttribute) WRITTEN(cuGetErrorString) WRITTEN(cuCtxGetCurrent)
                         WRITTEN(cuMemGetAllocationGranularity)};

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, uint64_t flags, int *status) {
  (void)version, (void)flags;
  *function = (void *)success; /* whatever else there is: cuMemMap, cuMemSetAccess, cuMemUnmap, ... */
  for (size_t i = 0; i < sizeof WRITTEN_FUNCTIONS / sizeof *WRITTEN_FUNCTIONS; i++)
    if (!strcmp(name, WRITTEN_FUNCTIONS[i].name)) *function = WRITTEN_FUNCTIONS[i].function;
  if (status) *status = 0;
  return 0;
}

/* ---- NVML, which torch 2.15 asks which devices are linked */

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(void) { return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetComputeRunningProcesses(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void) { return NOT_SUPPORTED; }
int nvmlSystemGetCudaDriverVersion_v2(void) { return NOT_SUPPORTED; }
