/* Memory of another process (cudaIpc*): it is counted where it was allocated; here it takes addresses only.
 *
 * Opening a handle twice gives the same address, which is closed twice. A handle is a name of 64 bytes; whether the other
 * process still has the memory is not known.
 */
#include "card.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { MOST_OPEN = 4096 };
static struct opened {
  struct ipc_handle handle;
  uint64_t address;
  int times;
} opened[MOST_OPEN];
static int opened_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool card_ipc_handle(uint64_t address, struct ipc_handle *out) {
  uint64_t base;
  size_t size;
  if (!card_range_of(address, &base, &size)) return false;
  *out =
      (struct ipc_handle){.address = base, .size = size, .device = card_device_of(base), .process = (uint32_t)getpid()};
  return true;
}

uint64_t card_ipc_open(const struct ipc_handle *handle) {
  uint64_t address = 0;
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < opened_count && memcmp(&opened[i].handle, handle, sizeof *handle) != 0) i++;
  if (i < opened_count) {
    opened[i].times++;
    address = opened[i].address;
  } else if (i < MOST_OPEN && (address = card_reserve(card_current(), handle->size))) {
    opened[opened_count++] = (struct opened){*handle, address, 1};
  }
  pthread_mutex_unlock(&lock);
  return address;
}

bool card_ipc_close(uint64_t address) {
  bool closed = false;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < opened_count && !closed; i++) {
    if (opened[i].address != address) continue;
    closed = true;
    if (--opened[i].times > 0) break;
    card_unreserve(address, opened[i].handle.size);
    opened[i] = opened[--opened_count];
  }
  pthread_mutex_unlock(&lock);
  return closed;
}
