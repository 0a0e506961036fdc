/* The emulated GPUs: state shared by every emulated library (libullage_card.so).
 *
 * A GPU has a size and an address space, and it computes nothing. Device addresses come from a range that is
 * reserved and never readable, so that a stray access fails at once and every address tells its device.
 */
#ifndef ULLAGE_CARD_H
#define ULLAGE_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ULLAGE_API __attribute__((visibility("default")))

/* A function without effect on memory or values: it succeeds and does nothing. Arguments are ignored, which the
 * x86-64 calling convention allows. */
#define ACCEPTS(function) \
  ULLAGE_API int function(void) { return 0; }
/* A function whose only effect is that kernels run on the GPU. */
#define LAUNCHES(function)        \
  ULLAGE_API int function(void) { \
    card_launch(NULL);            \
    return 0;                     \
  }

/* The version that a library reports part by part (libraryPropertyType: major, minor, patch). */
#define TELLS_VERSION(function, major, minor)               \
  ULLAGE_API int function(int part, int *value) {           \
    *value = part == 0 ? (major) : part == 1 ? (minor) : 0; \
    return 0;                                               \
  }

/* Keep the larger of what was seen and what is met. */
static inline void take_larger(int64_t *seen, int64_t value) {
  if (value > *seen) *seen = value;
}

enum { MAX_DEVICES = 16 };
#define PAGE_BYTES ((size_t)2 << 20) /* physical memory is allocated in pages of 2 MiB */

/* What is known of a GPU. The order is that of `figures` in library.py. */
enum card_figure {
  CARD_TOTAL_BYTES,
  CARD_CONTEXT_BYTES,
  CARD_CUDNN_WORKSPACE_BYTES,
  CARD_CC_MAJOR,
  CARD_CC_MINOR,
  CARD_SM_COUNT,
  CARD_L2_BYTES,
  CARD_SHARED_PER_BLOCK_OPTIN_BYTES,
  CARD_SHARED_PER_SM_BYTES,
  CARD_THREADS_PER_SM,
  CARD_REGISTERS_PER_SM,
  CARD_BLOCKS_PER_SM,
  CARD_PLACEMENT, /* enum placement */
  CARD_FIGURES
};

/* The emulated driver, which determines the addresses of memory. The order is that of `PLACEMENTS` in library.py. */
enum placement { PLACEMENT_LINUX, PLACEMENT_WSL, PLACEMENT_WINDOWS, PLACEMENT_LINUX_HOST };

struct card {
  char name[256];
  int64_t figure[CARD_FIGURES];
};

/* ---- set once by the Python side, before torch is loaded */
ULLAGE_API int card_configure(int count, int cuda_version, int cudnn_version);
ULLAGE_API int card_describe(int device, const char *name, const int64_t *figures, int count);

/* ---- the GPUs */
ULLAGE_API int card_count(void);
ULLAGE_API int card_cuda_version(void);  /* 13000 for CUDA 13.0 */
ULLAGE_API int card_cudnn_version(void); /* 91900 for cuDNN 9.19.0 */
ULLAGE_API const struct card *card_get(int device);
ULLAGE_API int card_current(void); /* the calling thread's device */
ULLAGE_API bool card_set_current(int device);

/* ---- device memory. Sizes are bytes; an address is 0 if memory ran out. */
ULLAGE_API uint64_t card_allocate(int device, size_t size);
ULLAGE_API bool card_free(uint64_t address);
ULLAGE_API void card_note_kernel(int device,
                                 bool is_deep); /* the driver takes memory for itself; it is the context's */
ULLAGE_API void card_note_handle(int device);   /* a handle of cuBLAS */
ULLAGE_API int64_t card_used_bytes(int device); /* the context included */
ULLAGE_API int64_t card_free_bytes(int device);
ULLAGE_API int64_t card_peak_used_bytes(int device);
ULLAGE_API void card_show_use(int64_t *memory);  /* of each device, kept as it changes; NULL: no longer */
ULLAGE_API int card_device_of(uint64_t address); /* -1: not a device address */
ULLAGE_API bool card_range_of(uint64_t address, uint64_t *base, size_t *size);

/* Virtual memory management: reserve addresses, create pages, map the one to the other. */
ULLAGE_API uint64_t card_reserve(int device, size_t size);
ULLAGE_API bool card_unreserve(uint64_t address, size_t size);
ULLAGE_API uint64_t card_create_pages(int device, size_t size); /* a handle, 0: out of memory */
ULLAGE_API bool card_release_pages(uint64_t handle);
ULLAGE_API bool card_map(uint64_t address, size_t size, uint64_t handle);
ULLAGE_API bool card_unmap(uint64_t address, size_t size);
ULLAGE_API uint64_t card_mapped_handle(uint64_t address); /* retains it */

/* Pinned host memory, recognized by its range. */
ULLAGE_API void *card_pin_allocate(size_t size);
ULLAGE_API bool card_pin_free(void *address);
ULLAGE_API bool card_pin_register(void *address, size_t size);
ULLAGE_API bool card_pin_unregister(void *address);
ULLAGE_API bool card_is_pinned(const void *address);
ULLAGE_API int64_t card_pinned_untouched(void); /* bytes of pages that were never written */

/* ---- managed.c: host memory that the GPU may read too. It counts as the GPU's from when it is prefetched to it,
 * as far as memory is free, until it is prefetched back or the GPU's own allocations need the memory. */
struct managed {
  uint64_t base;
  size_t size;
  int device;    /* where it was last prefetched to, -1: the host */
  int preferred; /* as advised, -1: the host, -2: nothing */
  bool read_mostly;
  int64_t on_card_bytes;
  uint64_t first, end; /* what of it was prefetched to the GPU, as one part: offsets in bytes */
};
ULLAGE_API void *card_managed_allocate(size_t size);
ULLAGE_API bool card_managed_free(const void *address);
ULLAGE_API bool card_managed_of(const void *address, struct managed *out);
ULLAGE_API bool card_managed_prefetch(const void *address, size_t size, int device);
ULLAGE_API bool card_managed_advise(const void *address, int advice, int device);
ULLAGE_API int64_t card_managed_on_card(int device);
ULLAGE_API int64_t card_managed_peak_on_card(int device);
int64_t card_managed_fit(int device, int64_t room); /* gives way to the GPU's own memory; what stays */
void card_note_peak(int device);

/* ---- pool.c: stream-ordered pools. A pool takes segments from the GPU, allocates parts of them, and keeps them until the
 * next synchronisation, or as its release threshold says. */
enum pool_attribute {
  POOL_RELEASE_THRESHOLD = 4,
  POOL_RESERVED = 5,
  POOL_RESERVED_HIGH = 6,
  POOL_USED = 7,
  POOL_USED_HIGH = 8
};
ULLAGE_API void *card_pool_default(int device);
ULLAGE_API void *card_pool_current(int device);
ULLAGE_API bool card_pool_use(int device, void *pool); /* NULL: the default again */
ULLAGE_API void *card_pool_create(int device);
ULLAGE_API bool card_pool_destroy(void *pool);
ULLAGE_API uint64_t card_pool_allocate(void *pool, size_t size);
ULLAGE_API bool card_pool_free(uint64_t address);  /* false: no pool's */
ULLAGE_API bool card_pool_holds(uint64_t address); /* in a segment of a pool, in use or not */
ULLAGE_API bool card_pool_block(uint64_t address, uint64_t *base, size_t *size);
ULLAGE_API void card_pool_trim(void *pool, uint64_t keep);
ULLAGE_API void card_synchronized(void); /* pools free what is over their thresholds */
ULLAGE_API bool card_pool_get(void *pool, int attribute, uint64_t *value);
ULLAGE_API bool card_pool_set(void *pool, int attribute, uint64_t value);

/* ---- ipc.c: memory of another process. It is counted there; here it takes addresses only. */
struct ipc_handle {
  uint64_t address, size;
  int32_t device;
  uint32_t process;
  char rest[40];
};
ULLAGE_API bool card_ipc_handle(uint64_t address, struct ipc_handle *out);
ULLAGE_API uint64_t card_ipc_open(const struct ipc_handle *handle);
ULLAGE_API bool card_ipc_close(uint64_t address);

/* ---- outside.c: memory requested outside PyTorch's allocator, by the shared object that called. */
struct outside_figures {
  uint64_t calls;
  int64_t bytes, peak_bytes,
      managed_peak_bytes; /* requested and not freed; the most at once; the same of managed memory */
};
ULLAGE_API void card_note_outside(const void *caller, uint64_t address, size_t size, bool managed);
ULLAGE_API void card_forget_outside(uint64_t address);
ULLAGE_API const char *card_outside(int index, struct outside_figures *out); /* the object's path; NULL: no more */

/* ---- values: a GPU computes nothing, and what is read back is zero, or what was said before the read. */
ULLAGE_API void card_answer(bool given,
                            int64_t number); /* to all reads of the calling thread, until it is taken back */
ULLAGE_API bool card_answered(
    int64_t *out);                      /* the number that the calling thread's reads are answered with, if one is */
ULLAGE_API void card_hold_values(void); /* before any memory is allocated: it is host memory from then on */
ULLAGE_API bool card_holds_values(void);
ULLAGE_API void card_leave_memory(bool leaves);    /* what the calling thread copies and fills on the GPU is left out */
ULLAGE_API void card_remember_sent(bool on);       /* the last copy to a GPU of each thread, up to 64 MiB */
ULLAGE_API void card_sent_is_noted(bool is_noted); /* what the calling thread copies is not to be remembered */
/* What of the most that the process had resident (as the kernel says) was remembered of what was sent, and the most that
 * was resident without that when something was about to be. */
ULLAGE_API void card_sent_at_high(int64_t high, int64_t *of_high, int64_t *resident_before);
ULLAGE_API bool card_take_sent(uint64_t address, size_t size, void *out); /* false: the last copy was another */
/* Whether what the calling thread does is seen: `c10::impl::tls_is_dispatch_key_included` of PyTorch's. */
typedef bool (*thread_is_seen)(uint16_t key);
ULLAGE_API void card_watch_writes(thread_is_seen function, uint16_t key); /* NULL: no longer */
ULLAGE_API void card_note_write(void);                 /* something is about to be written on the GPU */
ULLAGE_API extern _Atomic uint64_t card_unseen_writes; /* by threads that are not seen */
ULLAGE_API void card_copy(void *destination, const void *source, size_t size);
ULLAGE_API void card_fill(void *destination, int value, size_t size);
ULLAGE_API void card_launch(const void *function);             /* some kernel ran on the GPU */
ULLAGE_API const char *card_kernel_name(const void *function); /* NULL: unknown */
ULLAGE_API uint64_t card_launches(void);
ULLAGE_API void card_name_kernel(const void *function, const char *name);

/* ---- handles that need no more than an identity and a few numbers */
ULLAGE_API void *card_new_handle(size_t size); /* zeroed */
ULLAGE_API void card_drop_handle(void *handle);

/* ---- functions that are not implemented: named once in the report */
ULLAGE_API int card_unwritten(const char *library, const char *function, int status);
ULLAGE_API int card_unwritten_count(void);
ULLAGE_API const char *card_unwritten_name(int index, uint64_t *calls);

/* ---- plans.c: what cuDNN ran, problem by problem. A problem is a graph of operations with its shapes. */
enum plan_source {
  PLAN_UNKNOWN, /* its workspace is unknown */
  PLAN_GIVEN,   /* the user has */
  PLAN_TABLE,   /* measured of problems like it */
  PLAN_CUDNN,   /* cuDNN's own answer */
  PLAN_SOURCES
};
struct cudnn_plan {
  int source;
  uint64_t problem;
  int64_t tensor_bytes, workspace, low, high; /* of the whole graph; what it runs with, and what it could have been */
};
/* In the order of `_PlanFigures` in ullage/gpu/emulator/library.py; of all problems whose last plan is of one source. */
struct plan_figures {
  uint64_t runs, problems;
  int64_t largest_tensor_bytes, largest_workspace, most_below,
      most_above; /* how far below and above it could have been */
};
ULLAGE_API void card_note_plan(const struct cudnn_plan *plan);
ULLAGE_API uint64_t card_plans_run(void); /* how many, of all problems */
ULLAGE_API void card_plan_figures(int source, struct plan_figures *out);
ULLAGE_API void card_note_reason(const char *text); /* why a workspace is not cuDNN's own; each text once */
ULLAGE_API const char *card_reason(int index);      /* NULL: no more */
/* The problems in the order they came first, for comparing with cuDNN; false: no more. */
ULLAGE_API bool card_problem(int index, struct cudnn_plan *out);

/* ---- guesses.c: sizes that only a real GPU's handle knows. Bytes: what was taken, and what it could have been. */
enum guess_kind { GUESS_RNN, GUESS_BATCH_NORM, GUESS_DROPOUT, GUESS_CTC, GUESS_FFT, GUESS_KINDS };
struct guess {
  int64_t bytes, low, high;
};
/* In the order of `_GuessFigures` in library.py. */
struct guess_figures {
  uint64_t count;
  int64_t bytes, below, above; /* the most at once, and how far below and above it could have been */
  int64_t expected_below;      /* of the last request, if memory ran out over it; otherwise 0 */
};
ULLAGE_API void card_note_guess(int kind, const struct guess *guess); /* scratch memory */
/* What a forward is about to keep: memory may run out over it. */
ULLAGE_API void card_expect_guess(int kind, const struct guess *guess);
/* What a forward keeps until its backward; the owner is memory that lives as long, or until it is given again. */
ULLAGE_API void card_keep_guess(int kind, const void *owner, int64_t owner_bytes, const struct guess *guess);
ULLAGE_API void card_let_guess_go(int kind, const void *owner);
ULLAGE_API void card_guess_figures(int kind, struct guess_figures *out);

/* ---- communicators.c: of NCCL, at most at once. In the order of `CommunicatorFigures` in library.py. */
struct communicator_figures {
  int64_t communicators, peers; /* that have done something; that they send to, summed over communicators */
  int64_t sent_bytes;           /* since the beginning, by rings */
};
ULLAGE_API void card_note_communicator(int communicators, int peers); /* so many more */
ULLAGE_API void card_note_sent(int64_t bytes);
ULLAGE_API int64_t card_sent_bytes(void);
ULLAGE_API void card_communicator_figures(struct communicator_figures *out);

#endif
