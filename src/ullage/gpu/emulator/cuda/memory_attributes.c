/* What libcudart and libcuda both answer of managed memory, and how the one finds a function of the other. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "runtime.h"

long forward(long (**target)(long, long, long, long, long, long, long, long, long), const char *library,
             const char *name, const long argument[9]) {
  void *handle = *target ? NULL : dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle) *target = (long (*)(long, long, long, long, long, long, long, long, long))dlsym(handle, name);
  if (!*target) return card_unwritten(library, name, CUDA_NOT_SUPPORTED);
  return (*target)(argument[0], argument[1], argument[2], argument[3], argument[4], argument[5], argument[6],
                   argument[7], argument[8]);
}

/* enum cudaMemRangeAttribute; a place is a device, -1 the host, -2 none. */
bool managed_attribute(void *out, size_t size, int attribute, const void *address) {
  enum {
    READ_MOSTLY = 1,
    PREFERRED = 2,
    ACCESSED_BY = 3,
    PREFETCHED = 4,
    PREFERRED_TYPE = 5,
    PREFERRED_ID = 6,
    PREFETCHED_TYPE = 7,
    PREFETCHED_ID = 8
  };
  enum { NONE = -2 };
  struct managed managed;
  if (!card_managed_of(address, &managed)) return false;
  int32_t *number = out;
  int place = attribute == PREFERRED || attribute == PREFERRED_TYPE || attribute == PREFERRED_ID ? managed.preferred
                                                                                                 : managed.device;
  switch (attribute) {
    case READ_MOSTLY: *number = managed.read_mostly; return true;
    case PREFERRED:
    case PREFETCHED: *number = place; return true;
    case PREFERRED_TYPE:
    case PREFETCHED_TYPE: *number = place >= 0 ? ON_DEVICE : place == -1 ? ON_HOST : 0; return true;
    case PREFERRED_ID:
    case PREFETCHED_ID: *number = place >= 0 ? place : 0; return true;
    case ACCESSED_BY:
      for (size_t i = 0; i < size / sizeof *number; i++) number[i] = NONE;
      return true;
    default: return false;
  }
}
