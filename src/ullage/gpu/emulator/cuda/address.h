/* The addresses of a GPU's memory: ranges, placed where the driver of a system would place them. */
#ifndef ULLAGE_ADDRESS_H
#define ULLAGE_ADDRESS_H

#include "card.h"

/* By cudaMalloc, with its own pages | by cuMemAddressReserve, without | the driver's own, counted as the context's. */
enum range_kind { ALLOCATED, RESERVED, DRIVERS };
enum driver_event {
  KERNEL_RAN,
  DEEP_KERNEL_RAN,
  HANDLE_MADE
}; /* deep: it needs more stack than a thread has at first */
struct range {
  uint64_t address;
  size_t size;
  enum range_kind kind;
};

/* Sizes are whole pages. The caller holds a lock. */
uint64_t address_take(int device, size_t size, enum range_kind kind); /* 0: no memory */
struct range *address_find(uint64_t address);                         /* the range that holds it; NULL: none */
void address_drop(struct range *range);
void address_note(int device, enum driver_event event); /* where the driver takes memory for itself, it is there now */

/* Makes space for one more item. */
bool list_grow(void **items, size_t *capacity, size_t count, size_t item_size);

#endif
