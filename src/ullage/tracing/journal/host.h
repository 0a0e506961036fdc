/* The host's large pieces of memory, and the Python line that asked for each: pinned memory, as the emulated runtime hands
 * it out, and memory of the CPU's tensors.
 *
 * PyTorch takes the memory of a tensor on the CPU with c10::alloc_cpu and gives it back with c10::free_cpu. As with the
 * profiler's function (journal.h), this library is loaded before torch and defines both. It counts what is there, remembers
 * what was there when the most was, and keeps no list of events: its own memory grows with what is alive, not with time.
 */
#ifndef ULLAGE_HOST_H
#define ULLAGE_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ULLAGE_API __attribute__((visibility("default")))

enum host_kind { HOST_PINNED, HOST_TENSORS, HOST_KINDS };
enum { HOST_TENSOR_LEAST = 1 << 20 /* bytes: smaller tensors are not counted */ };

struct host_use {
  int64_t bytes;
  uint32_t blocks;
  uint32_t stack; /* a node, see stacks.h; 0: not known */
};

ULLAGE_API void host_open(void);
ULLAGE_API void host_close(void);
ULLAGE_API void host_note(enum host_kind kind, const void *address, size_t size);
ULLAGE_API void host_forget(enum host_kind kind, const void *address);
ULLAGE_API int64_t host_bytes(int kind);      /* now */
ULLAGE_API int64_t host_peak_bytes(int kind); /* the most at once */
ULLAGE_API int64_t host_own_bytes(void);      /* what counting takes */
/* What was there at the peak, by stack; false: there is no such index. */
ULLAGE_API bool host_use_at_peak(int kind, uint32_t index, struct host_use *out);

#endif
