/* libnvidia-ml: what PyTorch's out-of-memory text and nvidia-ml-py ask for. A handle is a device's number plus one. */
#include "card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

static int device_of(void *handle) { return (int)(intptr_t)handle - 1; }

ACCEPTS(nvmlInit_v2)
ACCEPTS(nvmlInit) ACCEPTS(nvmlInitWithFlags) ACCEPTS(nvmlShutdown) ULLAGE_API const char *nvmlErrorString(int status) {
  return status == SUCCESS ? "Success" : status == NOT_SUPPORTED ? "Not Supported" : "Invalid Argument";
}
ULLAGE_API int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  snprintf(text, size, "580.0 (emulated)");
  return SUCCESS;
}
ULLAGE_API int nvmlSystemGetNVMLVersion(char *text, unsigned size) { return nvmlSystemGetDriverVersion(text, size); }
ULLAGE_API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = card_cuda_version();
  return SUCCESS;
}
ULLAGE_API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

ULLAGE_API int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)card_count();
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (!card_get((int)index)) return INVALID_ARGUMENT;
  *handle = (void *)(intptr_t)(index + 1);
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
  const char *bus = strchr(text, ':');
  return bus ? nvmlDeviceGetHandleByIndex_v2((unsigned)strtoul(bus + 1, NULL, 16) - 1, handle) : INVALID_ARGUMENT;
}
ULLAGE_API int nvmlDeviceGetHandleByUUID(const char *text, void **handle) {
  const char *last = strrchr(text, '-');
  return last ? nvmlDeviceGetHandleByIndex_v2((unsigned)strtoul(last + 1, NULL, 16), handle) : NOT_FOUND;
}
ULLAGE_API int nvmlDeviceGetIndex(void *handle, unsigned *index) {
  *index = (unsigned)device_of(handle);
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
  if (!card_get(device_of(handle))) return INVALID_ARGUMENT;
  snprintf(text, size, "%s", card_get(device_of(handle))->name);
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
  snprintf(text, size, "GPU-756c6c61-6765-0000-0000-%012x", (unsigned)device_of(handle));
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  const struct card *card = card_get(device_of(handle));
  if (!card) return INVALID_ARGUMENT;
  *major = (int)card->figure[CARD_CC_MAJOR];
  *minor = (int)card->figure[CARD_CC_MINOR];
  return SUCCESS;
}

ULLAGE_API int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long info[3]) {
  int device = device_of(handle);
  if (!card_get(device)) return INVALID_ARGUMENT;
  info[0] = (unsigned long long)card_get(device)->figure[CARD_TOTAL_BYTES];
  info[1] = (unsigned long long)card_free_bytes(device);
  info[2] = (unsigned long long)card_used_bytes(device);
  return SUCCESS;
}
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
ULLAGE_API int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *info) {
  unsigned long long plain[3];
  int status = nvmlDeviceGetMemoryInfo(handle, plain);
  if (status == SUCCESS) info->total = plain[0], info->reserved = 0, info->free = plain[1], info->used = plain[2];
  return status;
}

/* This emulated GPU knows the process that asks, and those that ULLAGE_EMULATED_OTHERS names as "PID:BYTES PID:BYTES" (-1
   for bytes that are not told), for whoever looks at a GPU that is shared. Their bytes are told and not taken. */
enum { MOST_PROCESSES = 64 };
struct process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned instance, compute_instance;
};
ULLAGE_API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *processes) {
  int device = device_of(handle);
  if (!card_get(device)) return INVALID_ARGUMENT;
  struct process found[MOST_PROCESSES] = {{(unsigned)getpid(), (unsigned long long)card_used_bytes(device), ~0u, ~0u}};
  unsigned room = *count, n = 1;
  const char *text = getenv("ULLAGE_EMULATED_OTHERS");
  for (char *end; text && *text && n < MOST_PROCESSES; text = end + strspn(end, " ")) {
    unsigned pid = (unsigned)strtoul(text, &end, 10);
    if (*end != ':') break;
    found[n++] = (struct process){pid, strtoull(end + 1, &end, 10), ~0u, ~0u};
  }
  *count = n;
  if (room < n || !processes) return INSUFFICIENT_SIZE;
  memcpy(processes, found, n * sizeof *found);
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process *processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}
struct process_v1 {
  unsigned pid;
  unsigned long long used_bytes;
};
ULLAGE_API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process_v1 *processes) {
  struct process full[MOST_PROCESSES];
  unsigned room = *count;
  *count = MOST_PROCESSES;
  int status = nvmlDeviceGetComputeRunningProcesses_v3(handle, count, full);
  if (status != SUCCESS) return status;
  if (room < *count || !processes) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) processes[i] = (struct process_v1){full[i].pid, full[i].used_bytes};
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process *processes) {
  (void)handle, (void)processes;
  *count = 0;
  return SUCCESS;
}
ULLAGE_API int nvmlDeviceGetUtilizationRates(void *handle, unsigned rates[2]) {
  (void)handle;
  rates[0] = rates[1] = 0;
  return SUCCESS;
}
static int not_supported(void) { return NOT_SUPPORTED; }
/* nvmlGpuFabricInfoV_t as far as torch reads it; state 0: the GPU has no fabric. torch 2.13 takes no error for an answer. */
struct fabric {
  unsigned version;
  unsigned char cluster[16];
  unsigned status, clique;
  unsigned char state;
};
ULLAGE_API int nvmlDeviceGetGpuFabricInfoV(void *handle, struct fabric *info) {
  (void)handle;
  *info = (struct fabric){.version = info->version};
  return SUCCESS;
}
/* Asked on purpose to learn that it is not there: no NVLink. */
ULLAGE_API int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return not_supported(); }
ULLAGE_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return not_supported(); }
ULLAGE_API int nvmlDeviceGetP2PStatus(void *first, void *second, int kind, int *status) {
  (void)first, (void)second, (void)kind;
  *status = 0;
  return SUCCESS;
}
