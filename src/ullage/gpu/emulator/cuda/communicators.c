/* The communicators of NCCL that have done something, and the ranks that each sends to: what its buffers depend on;
 * and what this rank has sent. */
#include <pthread.h>

#include "card.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct communicator_figures now, most;

void card_note_communicator(int communicators, int peers) {
  pthread_mutex_lock(&lock);
  now.communicators += communicators;
  now.peers += peers;
  if (now.communicators > most.communicators) most.communicators = now.communicators;
  if (now.peers > most.peers) most.peers = now.peers;
  pthread_mutex_unlock(&lock);
}

void card_note_sent(int64_t bytes) {
  pthread_mutex_lock(&lock);
  most.sent_bytes += bytes;
  pthread_mutex_unlock(&lock);
}

int64_t card_sent_bytes(void) {
  struct communicator_figures figures;
  card_communicator_figures(&figures);
  return figures.sent_bytes;
}

void card_communicator_figures(struct communicator_figures *out) {
  pthread_mutex_lock(&lock);
  *out = most;
  pthread_mutex_unlock(&lock);
}
