/* The host's large pieces of memory, and the Python line that asked for each: pinned memory, as the emulated runtime hands
 * it out, memory of the CPU's tensors, and of NumPy's arrays.
 *
 * PyTorch takes the memory of a tensor on the CPU with c10::alloc_cpu and gives it back with c10::free_cpu. As with the
 * profiler's function (journal.h), this library is loaded before torch and defines both. NumPy has a table of functions
 * that it asks, in which ours stand before its own. What is there is counted, what was there when the most was is
 * remembered, and no list of events is kept: the memory of all this grows with what is alive, not with time.
 */
#ifndef ULLAGE_HOST_H
#define ULLAGE_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ULLAGE_API __attribute__((visibility("default")))

enum host_kind { HOST_PINNED, HOST_TENSORS, HOST_ARRAYS, HOST_KINDS };
enum { HOST_LEAST = 1 << 20 /* bytes: smaller tensors and arrays are not counted */ };

struct host_use {
  int64_t bytes;
  uint32_t blocks;
  uint32_t stack; /* a node, see stacks.h; 0: not known */
};

/* NumPy's PyDataMemAllocator (ndarraytypes.h, since NumPy 1.22) */
struct numpy_allocator {
  void *context;
  void *(*allocate)(void *context, size_t size);
  void *(*allocate_zeros)(void *context, size_t count, size_t size);
  void *(*reallocate)(void *context, void *address, size_t size);
  void (*release)(void *context, void *address, size_t size);
};

ULLAGE_API void host_open(void);
/* Have our functions stand in NumPy's table; once in a process. */
ULLAGE_API void host_watch_arrays(struct numpy_allocator *theirs);
ULLAGE_API void host_close(void);
ULLAGE_API void host_note(enum host_kind kind, const void *address, size_t size);
ULLAGE_API void host_forget(enum host_kind kind, const void *address);
ULLAGE_API int64_t host_bytes(int kind);      /* now */
ULLAGE_API int64_t host_peak_bytes(int kind); /* the most at once */
ULLAGE_API int64_t host_own_bytes(void);      /* what counting takes */
/* What was there at the peak, by stack; false: there is no such index. */
ULLAGE_API bool host_use_at_peak(int kind, uint32_t index, struct host_use *out);

#endif
