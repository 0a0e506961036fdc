/* libnccl: a communicator of one process that stands for all ranks. A collective returns what this rank sent, as if
 * every rank had sent the same. NCCL's own buffers are outside PyTorch's allocator; what they depend on is counted. */
#include "card.h"

#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };
enum { VERSION = 22809 };
enum { MOST_RANKS = 4096, WORD = 64 }; /* of a communicator, whose peers are distinguished */
struct communicator {
  int ranks, rank;
  bool works; /* it has done something */
  int peers;
  uint64_t sends_to[MOST_RANKS / WORD];
};
struct unique_id {
  char bytes[128];
};

static int create(struct communicator **out, int ranks, int rank) {
  *out = card_new_handle(sizeof **out);
  if (!*out) return SYSTEM_ERROR;
  **out = (struct communicator){.ranks = ranks, .rank = rank};
  return SUCCESS;
}

ULLAGE_API int ncclGetVersion(int *version) {
  *version = VERSION;
  return SUCCESS;
}
ULLAGE_API int ncclGetUniqueId(struct unique_id *id) {
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "ullage");
  return SUCCESS;
}
ULLAGE_API const char *ncclGetErrorString(int status) { return status ? "unhandled system error" : "no error"; }
ULLAGE_API const char *ncclGetLastError(struct communicator *communicator) {
  (void)communicator;
  return "";
}
ULLAGE_API int ncclCommInitRank(struct communicator **out, int ranks, struct unique_id id, int rank) {
  (void)id;
  return create(out, ranks, rank);
}
ULLAGE_API int ncclCommInitRankConfig(struct communicator **out, int ranks, struct unique_id id, int rank,
                                      void *config) {
  (void)id, (void)config;
  return create(out, ranks, rank);
}
ULLAGE_API int ncclCommInitRankScalable(struct communicator **out, int ranks, int rank, int ids, struct unique_id *id,
                                        void *config) {
  (void)ids, (void)id, (void)config;
  return create(out, ranks, rank);
}
ULLAGE_API int ncclCommInitAll(struct communicator **out, int devices, const int *list) {
  (void)list;
  int status = SUCCESS;
  for (int i = 0; i < devices && status == SUCCESS; i++) status = create(&out[i], devices, i);
  return status;
}
ULLAGE_API int ncclCommSplit(struct communicator *from, int color, int key, struct communicator **out, void *config) {
  (void)color, (void)config; /* how many ranks share a colour, only they know together */
  return create(out, from->ranks, key);
}
ULLAGE_API int ncclCommShrink(struct communicator *from, int *excluded, int count, struct communicator **out,
                              void *config, int flags) {
  (void)excluded, (void)config, (void)flags;
  return create(out, from->ranks - count, from->rank);
}
ULLAGE_API int ncclCommDestroy(struct communicator *communicator) {
  if (communicator && communicator->works) card_note_communicator(-1, -communicator->peers);
  card_drop_handle(communicator);
  return SUCCESS;
}
ULLAGE_API int ncclCommAbort(struct communicator *communicator) { return ncclCommDestroy(communicator); }
ULLAGE_API int ncclCommCount(struct communicator *communicator, int *count) {
  *count = communicator->ranks;
  return SUCCESS;
}
ULLAGE_API int ncclCommUserRank(struct communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return SUCCESS;
}
ULLAGE_API int ncclCommCuDevice(struct communicator *communicator, int *device) {
  (void)communicator;
  *device = card_current();
  return SUCCESS;
}
ULLAGE_API int ncclCommGetAsyncError(struct communicator *communicator, int *error) {
  (void)communicator;
  *error = SUCCESS;
  return SUCCESS;
}
ULLAGE_API int ncclCommRegister(struct communicator *communicator, void *buffer, size_t size, void **handle) {
  (void)communicator, (void)size;
  *handle = buffer;
  return SUCCESS;
}
ULLAGE_API int ncclCommWindowRegister(struct communicator *communicator, void *buffer, size_t size, void **window,
                                      int flags) {
  (void)flags;
  return ncclCommRegister(communicator, buffer, size, window);
}
ACCEPTS(ncclCommFinalize)
ACCEPTS(ncclCommDeregister)
ACCEPTS(ncclCommWindowDeregister)
ULLAGE_API int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence,
                                        struct communicator *communicator) {
  (void)scalar, (void)type, (void)residence, (void)communicator;
  *operation = 5;
  return SUCCESS;
}
ACCEPTS(ncclRedOpDestroy)

ULLAGE_API int ncclMemAlloc(void **address, size_t size) {
  *address = (void *)card_allocate(card_current(), size);
  return *address ? SUCCESS : SYSTEM_ERROR;
}
ULLAGE_API int ncclMemFree(void *address) {
  return !address || card_free((uint64_t)address) ? SUCCESS : INVALID_ARGUMENT;
}

/* ---- collectives */

/* NCCL connects ranks, and allocates buffers, when a communicator works for the first time. */
static int work(struct communicator *communicator) {
  card_launch(NULL);
  if (communicator && !communicator->works && communicator->ranks > 1) {
    communicator->works = true;
    card_note_communicator(1, 0);
  }
  return SUCCESS;
}
/* What this rank sends to others: `parts` of `count` numbers, each divided by `of`. A ring of n ranks has n - 1 rounds. */
static void sends(struct communicator *communicator, size_t count, int type, int64_t parts, int64_t of) {
  static const int64_t bytes_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  if (!communicator || communicator->ranks < 2 || type < 0 || type >= (int)(sizeof bytes_of / sizeof *bytes_of)) return;
  card_note_sent((int64_t)count * bytes_of[type] * parts / of);
}
static int64_t rounds(struct communicator *communicator) { return communicator ? communicator->ranks - 1 : 0; }
static int exchange(struct communicator *communicator, int peer) {
  int status = work(communicator);
  if (!communicator || peer < 0 || peer >= MOST_RANKS || peer == communicator->rank) return status;
  uint64_t bit = (uint64_t)1 << (peer % WORD), *word = &communicator->sends_to[peer / WORD];
  if (communicator->works && !(*word & bit)) {
    *word |= bit;
    communicator->peers++;
    card_note_communicator(0, 1);
  }
  return status;
}
static int exchange_with_all(struct communicator *communicator) {
  for (int peer = 0; communicator && peer < communicator->ranks; peer++) exchange(communicator, peer);
  return work(communicator);
}

ACCEPTS(ncclGroupStart)
ACCEPTS(ncclGroupEnd)
ULLAGE_API int ncclAllGather(void *sent, void *got, size_t count, int type, struct communicator *communicator) {
  (void)sent, (void)got;
  sends(communicator, count, type, rounds(communicator), 1);
  return work(communicator);
}
ULLAGE_API int ncclAllReduce(void *sent, void *got, size_t count, int type, int operation,
                             struct communicator *communicator) {
  (void)sent, (void)got, (void)operation;
  sends(communicator, count, type, 2 * rounds(communicator), rounds(communicator) + 1);
  return work(communicator);
}
ULLAGE_API int ncclReduceScatter(void *sent, void *got, size_t count, int type, int operation,
                                 struct communicator *communicator) {
  (void)operation;
  return ncclAllGather(sent, got, count, type, communicator); /* the same rounds, the other way */
}
ULLAGE_API int ncclBroadcast(void *sent, void *got, size_t count, int type, int root,
                             struct communicator *communicator) {
  (void)sent, (void)got, (void)root;
  sends(communicator, count, type, 1, 1);
  return work(communicator);
}
ULLAGE_API int ncclReduce(void *sent, void *got, size_t count, int type, int operation, int root,
                          struct communicator *communicator) {
  (void)operation;
  return ncclBroadcast(sent, got, count, type, root, communicator);
}
ULLAGE_API int ncclBcast(void *buffer, size_t count, int type, int root, struct communicator *communicator) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator);
}
ULLAGE_API int ncclAlltoAll(void *sent, void *got, size_t count, int type, struct communicator *communicator) {
  (void)sent, (void)got;
  sends(communicator, count, type, rounds(communicator), 1);
  return exchange_with_all(communicator);
}
static int with_root(struct communicator *communicator, int root) {
  return communicator && root == communicator->rank ? exchange_with_all(communicator) : exchange(communicator, root);
}
ULLAGE_API int ncclGather(void *sent, void *got, size_t count, int type, int root, struct communicator *communicator) {
  (void)sent, (void)got;
  if (communicator && root != communicator->rank) sends(communicator, count, type, 1, 1);
  return with_root(communicator, root);
}
ULLAGE_API int ncclScatter(void *sent, void *got, size_t count, int type, int root, struct communicator *communicator) {
  (void)sent, (void)got;
  if (communicator && root == communicator->rank) sends(communicator, count, type, rounds(communicator), 1);
  return with_root(communicator, root);
}
ULLAGE_API int ncclSend(void *sent, size_t count, int type, int peer, struct communicator *communicator) {
  (void)sent;
  if (communicator && peer != communicator->rank) sends(communicator, count, type, 1, 1);
  return exchange(communicator, peer);
}
ULLAGE_API int ncclRecv(void *got, size_t count, int type, int peer, struct communicator *communicator) {
  (void)got, (void)count, (void)type;
  return exchange(communicator, peer);
}
