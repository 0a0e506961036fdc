#define _GNU_SOURCE
#include "card.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct card cards[MAX_DEVICES];
static int count, cuda_version, cudnn_version;
static _Thread_local int current;

int card_configure(int devices, int cuda, int cudnn) {
  if (devices < 0 || devices > MAX_DEVICES) return 0;
  count = devices;
  cuda_version = cuda;
  cudnn_version = cudnn;
  return 1;
}

int card_describe(int device, const char *name, const int64_t *figures, int figure_count) {
  if (device < 0 || device >= count || figure_count != CARD_FIGURES) return 0;
  strncpy(cards[device].name, name, sizeof cards[device].name - 1);
  memcpy(cards[device].figure, figures, sizeof cards[device].figure);
  return 1;
}

int card_count(void) { return count; }
int card_cuda_version(void) { return cuda_version; }
int card_cudnn_version(void) { return cudnn_version; }
int card_current(void) { return current; }

const struct card *card_get(int device) { return device >= 0 && device < count ? &cards[device] : NULL; }

bool card_set_current(int device) {
  if (device < 0 || device >= count) return false;
  current = device;
  return true;
}

/* ---- kernels: counted, and known by name */

static atomic_uint_least64_t launches;

struct kernel_name {
  const void *function;
  const char *name;
};
static struct kernel_name *kernels;
static size_t kernel_count, kernel_capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Kernels that check an index and stop the program where it is wrong (`assert`), for which a thread's first stack is too
 * small: seen of the first named in card_name_kernel, taken for the others. Asked for until one has run. */
enum { DEEP = 256 };
static const void *deep[DEEP];
static atomic_int deep_count;
static atomic_bool deep_ran;

static bool is_deep(const void *function) {
  int known = atomic_load(&deep_count);
  for (int i = 0; i < known; i++)
    if (deep[i] == function) return true;
  return false;
}

void card_launch(const void *function) {
  card_note_write();
  bool is_first = atomic_fetch_add(&launches, 1) == 0;
  if (cards[0].figure[CARD_PLACEMENT] != PLACEMENT_WSL) return; /* only WSL uses it */
  if (!is_first && atomic_load(&deep_ran)) return;
  bool ran = function && is_deep(function);
  if (ran) atomic_store(&deep_ran, true);
  if (ran || is_first) card_note_kernel(card_current(), ran);
}

uint64_t card_launches(void) { return atomic_load(&launches); }

void card_name_kernel(const void *function, const char *name) {
  pthread_mutex_lock(&lock);
  int deep_known = atomic_load(&deep_count);
  if (deep_known < DEEP && (strstr(name, "vectorized_gather_kernel") || strstr(name, "index_elementwise_kernel") ||
                            strstr(name, "indexSelect"))) {
    deep[deep_known] = function;
    atomic_store(&deep_count, deep_known + 1);
  }
  if (kernel_count == kernel_capacity) {
    size_t wanted = kernel_capacity ? 2 * kernel_capacity : 4096;
    struct kernel_name *grown = realloc(kernels, wanted * sizeof *grown);
    if (grown) {
      kernels = grown;
      kernel_capacity = wanted;
    }
  }
  if (kernel_count < kernel_capacity) kernels[kernel_count++] = (struct kernel_name){function, name};
  pthread_mutex_unlock(&lock);
}

/* Asked seldom, so a walk through the list is fast enough. */
const char *card_kernel_name(const void *function) {
  const char *name = NULL;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < kernel_count && !name; i++)
    if (kernels[i].function == function) name = kernels[i].name;
  pthread_mutex_unlock(&lock);
  return name;
}

/* ---- handles */

void *card_new_handle(size_t size) { return calloc(1, size < 16 ? 16 : size); }
void card_drop_handle(void *handle) { free(handle); }

/* ---- functions that are not implemented */

enum { UNWRITTEN_MAX = 512 };
static struct {
  char name[120];
  uint64_t calls;
} unwritten[UNWRITTEN_MAX];
static int unwritten_total;

int card_unwritten(const char *library, const char *function, int status) {
  char name[120];
  strncpy(name, library, sizeof name - 1);
  name[sizeof name - 1] = 0;
  strncat(name, ":", sizeof name - strlen(name) - 1);
  strncat(name, function, sizeof name - strlen(name) - 1);
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < unwritten_total && strcmp(unwritten[i].name, name) != 0) i++;
  if (i < UNWRITTEN_MAX) {
    if (i == unwritten_total) strcpy(unwritten[unwritten_total++].name, name);
    unwritten[i].calls++;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

int card_unwritten_count(void) { return unwritten_total; }

const char *card_unwritten_name(int index, uint64_t *calls) {
  if (index < 0 || index >= unwritten_total) return NULL;
  *calls = unwritten[index].calls;
  return unwritten[index].name;
}
