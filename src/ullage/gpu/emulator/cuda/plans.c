/* The plans that cuDNN ran: for each problem the workspace of the last, and the range of all of them. With
 * `torch.backends.cudnn.benchmark` PyTorch runs many plans of one problem and keeps the fastest, which is unknown here. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"

enum { MAX_REASONS = 64, REASON_BYTES = 400 };

struct problem {
  struct cudnn_plan last; /* its low and high are those of all plans that ran */
  uint64_t runs;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct problem *problems;
static int count, capacity;
static int *places, place_count; /* open addressing: a problem's number + 1, 0: free */
static char reasons[MAX_REASONS][REASON_BYTES];
static int reason_count;

static int *place_of(uint64_t problem) {
  size_t mask = (size_t)place_count - 1, at = (size_t)(problem ^ problem >> 32) & mask;
  while (places[at] && problems[places[at] - 1].last.problem != problem) at = (at + 1) & mask;
  return &places[at];
}

static bool grow(void) {
  int wanted = capacity ? 2 * capacity : 256;
  struct problem *more = realloc(problems, (size_t)wanted * sizeof *more);
  if (!more) return false;
  problems = more;
  int *table = calloc((size_t)wanted * 2, sizeof *table);
  if (!table) return false;
  free(places);
  places = table;
  place_count = wanted * 2;
  capacity = wanted;
  for (int i = 0; i < count; i++) *place_of(problems[i].last.problem) = i + 1;
  return true;
}

static atomic_uint_fast64_t plans_run;

uint64_t card_plans_run(void) { return atomic_load(&plans_run); }

void card_note_plan(const struct cudnn_plan *plan) {
  atomic_fetch_add(&plans_run, 1);
  pthread_mutex_lock(&lock);
  if (count < capacity || grow()) {
    int *place = place_of(plan->problem);
    if (!*place) {
      problems[count] = (struct problem){.last = *plan};
      *place = ++count;
    }
    struct problem *problem = &problems[*place - 1];
    int64_t low = problem->last.low, high = problem->last.high;
    problem->last = *plan;
    if (low < plan->low) problem->last.low = low;
    if (high > plan->high) problem->last.high = high;
    problem->runs++;
  }
  pthread_mutex_unlock(&lock);
}

void card_plan_figures(int source, struct plan_figures *out) {
  *out = (struct plan_figures){0};
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count; i++) {
    const struct cudnn_plan *plan = &problems[i].last;
    if (plan->source != source) continue;
    out->runs += problems[i].runs;
    out->problems++;
    take_larger(&out->largest_tensor_bytes, plan->tensor_bytes);
    take_larger(&out->largest_workspace, plan->workspace);
    take_larger(&out->most_below, plan->workspace - plan->low);
    take_larger(&out->most_above, plan->high - plan->workspace);
  }
  pthread_mutex_unlock(&lock);
}

bool card_problem(int index, struct cudnn_plan *out) {
  pthread_mutex_lock(&lock);
  bool there = index >= 0 && index < count;
  if (there) *out = problems[index].last;
  pthread_mutex_unlock(&lock);
  return there;
}

void card_note_reason(const char *text) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < reason_count && strncmp(reasons[i], text, REASON_BYTES - 1) != 0) i++;
  if (i == reason_count && i < MAX_REASONS) strncpy(reasons[reason_count++], text, REASON_BYTES - 1);
  pthread_mutex_unlock(&lock);
}

const char *card_reason(int index) { return index >= 0 && index < reason_count ? reasons[index] : NULL; }
