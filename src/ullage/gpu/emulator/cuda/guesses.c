/* Sizes that a library reveals only for a real GPU's handle. Each is guessed, together with how far the guess may be off.
 * Scratch memory follows one another in the allocator's cache: the largest
 * counts. What a forward keeps for its backward adds up: the most that was kept at once counts. */
#include <pthread.h>
#include <stdlib.h>

#include "card.h"

struct kept {
  uintptr_t start, end; /* of the memory that lives as long; 0: free */
  struct guess guess;
};
struct book {
  uint64_t count;
  struct guess expected; /* requested; it is not kept before its memory was found */
  struct guess_figures scratch, kept, most_kept;
  struct kept *owners;
  int owner_count;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct book books[GUESS_KINDS];

static void take_largest(struct guess_figures *seen, const struct guess_figures *value) {
  take_larger(&seen->bytes, value->bytes);
  take_larger(&seen->below, value->below);
  take_larger(&seen->above, value->above);
}
static struct guess_figures figures_of(const struct guess *guess) {
  return (struct guess_figures){0, guess->bytes, guess->bytes - guess->low, guess->high - guess->bytes, 0};
}
static void add(struct guess_figures *sum, const struct guess *guess, int times) {
  struct guess_figures one = figures_of(guess);
  sum->bytes += times * one.bytes;
  sum->below += times * one.below;
  sum->above += times * one.above;
}

void card_note_guess(int kind, const struct guess *guess) {
  struct guess_figures one = figures_of(guess);
  pthread_mutex_lock(&lock);
  books[kind].count++;
  take_largest(&books[kind].scratch, &one);
  pthread_mutex_unlock(&lock);
}

/* Gives a place back. */
static void let_go(struct book *book, struct kept *kept) {
  add(&book->kept, &kept->guess, -1);
  *kept = (struct kept){0};
}

/* A free entry; NULL: the table is full. Owners of this memory are gone: it was reused, and no backward came. */
static struct kept *place_for(struct book *book, uintptr_t start, uintptr_t end) {
  struct kept *unused = NULL;
  for (int i = 0; i < book->owner_count; i++) {
    struct kept *one = &book->owners[i];
    if (one->end && one->start < end && start < one->end) let_go(book, one);
    if (!one->end && !unused) unused = one;
  }
  if (unused) return unused;
  int wanted = book->owner_count ? 2 * book->owner_count : 64;
  struct kept *more = realloc(book->owners, (size_t)wanted * sizeof *more);
  if (!more) return NULL;
  for (int i = book->owner_count; i < wanted; i++) more[i] = (struct kept){0};
  unused = &more[book->owner_count];
  book->owners = more;
  book->owner_count = wanted;
  return unused;
}

void card_expect_guess(int kind, const struct guess *guess) {
  pthread_mutex_lock(&lock);
  books[kind].expected = *guess;
  pthread_mutex_unlock(&lock);
}

void card_keep_guess(int kind, const void *owner, int64_t owner_bytes, const struct guess *guess) {
  if (!owner) return;
  uintptr_t start = (uintptr_t)owner, end = start + (uintptr_t)(owner_bytes > 0 ? owner_bytes : 1);
  pthread_mutex_lock(&lock);
  struct book *book = &books[kind];
  struct kept *place = place_for(book, start, end);
  if (place) {
    *place = (struct kept){start, end, *guess};
    add(&book->kept, guess, 1);
    take_largest(&book->most_kept, &book->kept);
    book->expected = (struct guess){0};
    book->count++;
  }
  pthread_mutex_unlock(&lock);
}

void card_let_guess_go(int kind, const void *owner) {
  pthread_mutex_lock(&lock);
  struct book *book = &books[kind];
  for (int i = 0; owner && i < book->owner_count; i++) {
    if (book->owners[i].start != (uintptr_t)owner) continue;
    let_go(book, &book->owners[i]);
    break;
  }
  pthread_mutex_unlock(&lock);
}

void card_guess_figures(int kind, struct guess_figures *out) {
  pthread_mutex_lock(&lock);
  const struct book *book = &books[kind];
  *out = book->scratch;
  out->count = book->count;
  out->bytes += book->most_kept.bytes;
  out->below += book->most_kept.below;
  out->above += book->most_kept.above;
  out->expected_below = book->expected.bytes - book->expected.low;
  pthread_mutex_unlock(&lock);
}
