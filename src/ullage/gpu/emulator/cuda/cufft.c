/* libcufft: plans keep the size of their work area, every transform is a launch.
 *
 * The work area is a guess: one copy of the transform in complex numbers (half of it for real transforms). It is
 * what was published for two-dimensional transforms (arrayfire issue 1443), and the least that cuFFT's documents name
 * for plans that need one. How far it may be off: the least is nothing, for a transform that one kernel does; the most
 * is 8 copies, the worst case of those documents, where a length has another prime factor than 2, 3, 5 and 7, for
 * which cuFFT has kernels; where it has not, 2 copies are assumed, what a pass reads and what it writes. */
#include "card.h"

#include <pthread.h>
#include <stdlib.h>

#include "../../tracing/journal/journal.h"

enum { SUCCESS = 0, INVALID_PLAN = 1, ALLOC_FAILED = 2 };

/* A plan is a number. PyTorch keeps thousands of them, and gives each its work area at every use. */
struct plan {
  bool in_use, allocates;
  size_t bytes;
  uint64_t own_area; /* allocated by cuFFT itself, as it does by default */
};
static struct plan *plans;
static int plan_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int first_free(void) {
  int number = 0;
  while (number < plan_count && plans[number].in_use) number++;
  if (number < plan_count) return number;
  int wanted = plan_count ? 2 * plan_count : 64;
  struct plan *grown = realloc(plans, (size_t)wanted * sizeof *grown);
  if (!grown) return -1;
  plans = grown;
  for (int i = plan_count; i < wanted; i++) plans[i] = (struct plan){0};
  plan_count = wanted;
  return number;
}

/* The plan of that number, with the lock held; NULL without. */
static struct plan *take(int number) {
  pthread_mutex_lock(&lock);
  if (number >= 0 && number < plan_count && plans[number].in_use) return &plans[number];
  pthread_mutex_unlock(&lock);
  return NULL;
}
static int give_back(int status) {
  pthread_mutex_unlock(&lock);
  return status;
}

ULLAGE_API int cufftCreate(int *out) {
  pthread_mutex_lock(&lock);
  int number = first_free();
  if (number < 0) return give_back(ALLOC_FAILED);
  plans[number] = (struct plan){.in_use = true, .allocates = true};
  *out = number;
  return give_back(SUCCESS);
}
ULLAGE_API int cufftDestroy(int number) {
  struct plan *plan = take(number);
  if (!plan) return INVALID_PLAN;
  if (plan->own_area) card_free(plan->own_area);
  *plan = (struct plan){0};
  return give_back(SUCCESS);
}
ULLAGE_API int cufftSetAutoAllocation(int number, int allocates) {
  struct plan *plan = take(number);
  if (!plan) return INVALID_PLAN;
  plan->allocates = allocates != 0;
  return give_back(SUCCESS);
}
ACCEPTS(cufftSetStream)

/* Whether cuFFT has kernels for the length. */
static bool is_smooth(long long length) {
  for (int factor = 2; factor <= 7; factor++)
    while (length > 1 && length % factor == 0) length /= factor;
  return length <= 1;
}

ULLAGE_API int cufftXtMakePlanMany(int number, int rank, const long long *sizes, const long long *in_embed,
                                   long long in_stride, long long in_step, int in_type, const long long *out_embed,
                                   long long out_stride, long long out_step, int out_type, long long batch,
                                   size_t *bytes, int type) {
  enum { COMPLEX_SINGLE = 4, COMPLEX_DOUBLE = 5 }; /* the third is half, of 4 bytes */
  (void)in_embed, (void)in_stride, (void)in_step, (void)out_embed, (void)out_stride, (void)out_step;
  int64_t count = batch, most_copies = 2;
  for (int i = 0; i < rank; i++) {
    if (!is_smooth(sizes[i])) most_copies = 8;
    count *= i == rank - 1 && in_type != out_type ? sizes[i] / 2 + 1 : sizes[i];
  }
  struct plan *plan = take(number);
  if (!plan) return INVALID_PLAN;
  plan->bytes = (size_t)(count * (type == COMPLEX_DOUBLE ? 16 : type == COMPLEX_SINGLE ? 8 : 4));
  *bytes = plan->bytes;
  card_note_guess(GUESS_FFT, &(struct guess){(int64_t)plan->bytes, 0, most_copies * (int64_t)plan->bytes});
  if (plan->own_area) card_free(plan->own_area);
  plan->own_area = plan->allocates ? card_allocate(card_current(), plan->bytes) : 0;
  return give_back(plan->allocates && !plan->own_area ? ALLOC_FAILED : SUCCESS);
}
ULLAGE_API int cufftSetWorkArea(int number, void *area) {
  struct plan *plan = take(number);
  if (!plan) return INVALID_PLAN;
  size_t bytes = plan->bytes;
  if (plan->own_area) card_free(plan->own_area);
  plan->own_area = 0;
  pthread_mutex_unlock(&lock);
  if (area && bytes) journal_workspace(area, bytes, card_current());
  return SUCCESS;
}
LAUNCHES(cufftXtExec)
