/* Memory that is requested outside PyTorch's allocator, by the shared object whose code made the call.
 *
 * PyTorch's allocator is libc10_cuda.so. A call through ctypes is libffi's, whoever made it. Bytes are those requested; the
 * GPU counts whole pages.
 */
#define _GNU_SOURCE
#include "card.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OBJECTS = 128, CALLERS = 1024 };
static struct {
  const void *base; /* where the object is loaded */
  char path[512];
  struct outside_figures figures;
  int64_t managed_bytes;
} objects[MOST_OBJECTS];
static int object_count;
static struct {
  const void *caller;
  int object; /* -1: PyTorch's allocator */
} callers[CALLERS];
static struct allocation {
  uint64_t address;
  size_t size;
  int object;
  bool managed;
} *allocations;
static size_t count, capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int object_with(const Dl_info *info) {
  int i = 0;
  while (i < object_count && objects[i].base != info->dli_fbase) i++;
  if (i == MOST_OBJECTS) return -1;
  if (i == object_count) {
    objects[i].base = info->dli_fbase;
    strncpy(objects[i].path, info->dli_fname, sizeof objects[i].path - 1);
    object_count++;
  }
  return i;
}

static int object_of(const void *caller) {
  size_t place = ((uintptr_t)caller >> 2) % CALLERS;
  if (callers[place].caller == caller) return callers[place].object;
  Dl_info info;
  bool known = dladdr(caller, &info) && info.dli_fname;
  int object = !known || strstr(info.dli_fname, "libc10_cuda.so") ? -1 : object_with(&info);
  callers[place].caller = caller;
  callers[place].object = object;
  return object;
}

void card_note_outside(const void *caller, uint64_t address, size_t size, bool managed) {
  if (!address) return;
  pthread_mutex_lock(&lock);
  int object = object_of(caller);
  if (object >= 0 && count == capacity) {
    size_t wanted = capacity ? 2 * capacity : 64;
    struct allocation *grown = realloc(allocations, wanted * sizeof *grown);
    if (grown) {
      allocations = grown;
      capacity = wanted;
    }
  }
  if (object >= 0 && count < capacity) {
    struct outside_figures *figures = &objects[object].figures;
    allocations[count++] = (struct allocation){address, size, object, managed};
    figures->calls++;
    if (managed) {
      objects[object].managed_bytes += (int64_t)size;
      take_larger(&figures->managed_peak_bytes, objects[object].managed_bytes);
    } else {
      figures->bytes += (int64_t)size;
      take_larger(&figures->peak_bytes, figures->bytes);
    }
  }
  pthread_mutex_unlock(&lock);
}

/* The newest first: what is freed soon was requested last. */
void card_forget_outside(uint64_t address) {
  if (!count) return;
  pthread_mutex_lock(&lock);
  size_t i = count;
  while (i > 0 && allocations[i - 1].address != address) i--;
  if (i > 0) {
    struct allocation *found = &allocations[i - 1];
    if (found->managed) objects[found->object].managed_bytes -= (int64_t)found->size;
    else objects[found->object].figures.bytes -= (int64_t)found->size;
    *found = allocations[--count];
  }
  pthread_mutex_unlock(&lock);
}

const char *card_outside(int index, struct outside_figures *out) {
  if (index < 0 || index >= object_count) return NULL;
  *out = objects[index].figures;
  return objects[index].path;
}
