/* libcudart: streams, events, capture; graphs are in graph.c. The GPU is infinitely fast: whatever is asked of it is done at once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "runtime.h"

/* Handles come from one array, in order, because PyTorch sorts free blocks by their stream's handle. */
enum { STREAMS = 1 << 16 };
struct stream {
  int in_use, device, priority;
  unsigned flags;
  struct graph *capture; /* not NULL: recording, not running */
};
struct event {
  unsigned flags;
  struct graph *capture;
  struct timespec time;
  uint64_t launches, plans; /* how many there had been */
};

static struct stream streams[STREAMS];
static struct stream *used_end = streams + 1; /* the first entry represents the default stream */
static uint64_t captures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct stream *stream_of(void *handle) {
  struct stream *stream = handle;
  return stream >= streams && stream < streams + STREAMS && stream->in_use ? stream : NULL;
}

/* ---- streams */

API int cudaStreamCreateWithPriority(void **handle, unsigned flags, int priority) {
  pthread_mutex_lock(&lock);
  struct stream *stream = streams + 1;
  while (stream < streams + STREAMS && stream->in_use) stream++;
  bool found = stream < streams + STREAMS;
  if (found) *stream = (struct stream){1, card_current(), priority, flags, NULL};
  if (found && stream >= used_end) used_end = stream + 1;
  pthread_mutex_unlock(&lock);
  *handle = found ? stream : NULL;
  return found ? CUDA_SUCCESS : cuda_fail(CUDA_OUT_OF_MEMORY);
}
API int cudaStreamCreateWithFlags(void **handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}
API int cudaStreamCreate(void **handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
API int cudaStreamDestroy(void *handle) {
  struct stream *stream = stream_of(handle);
  if (!stream) return cuda_fail(CUDA_INVALID_HANDLE);
  stream->in_use = 0;
  return CUDA_SUCCESS;
}
API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}
API int cudaStreamGetPriority(void *handle, int *priority) {
  struct stream *stream = stream_of(handle);
  *priority = stream ? stream->priority : 0;
  return CUDA_SUCCESS;
}
API int cudaStreamGetFlags(void *handle, unsigned *flags) {
  struct stream *stream = stream_of(handle);
  *flags = stream ? stream->flags : 0;
  return CUDA_SUCCESS;
}
API int cudaStreamGetDevice(void *handle, int *device) {
  struct stream *stream = stream_of(handle);
  *device = stream ? stream->device : card_current();
  return CUDA_SUCCESS;
}
ACCEPTS(cudaStreamQuery) ACCEPTS(cudaStreamSetAttribute) API int cudaStreamSynchronize(void *handle) {
  (void)handle;
  card_synchronized();
  return CUDA_SUCCESS;
}

API int cudaStreamWaitEvent(void *handle, void *event_handle, unsigned flags) {
  struct stream *stream = stream_of(handle);
  struct event *event = event_handle;
  (void)flags;
  if (stream && event && event->capture) stream->capture = event->capture; /* the fork joins the capture */
  return CUDA_SUCCESS;
}
API int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  (void)stream;
  function(data);
  return CUDA_SUCCESS;
}
API int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data, unsigned flags) {
  (void)flags;
  function(stream, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}

/* ---- events: complete as soon as they are recorded, and timed by the host's clock. One cuDNN plan alone takes the same
 * time always: torch.backends.cudnn.benchmark times each plan so, and must not choose one by how busy the host is. */
enum { PLAN_MICROSECONDS = 10 };

API int cudaEventCreateWithFlags(void **handle, unsigned flags) {
  struct event *event = card_new_handle(sizeof *event);
  *handle = event;
  if (!event) return cuda_fail(CUDA_OUT_OF_MEMORY);
  event->flags = flags;
  return CUDA_SUCCESS;
}
API int cudaEventCreate(void **handle) { return cudaEventCreateWithFlags(handle, 0); }
API int cudaEventDestroy(void *handle) {
  card_drop_handle(handle);
  return CUDA_SUCCESS;
}
API int cudaEventRecord(void *handle, void *stream_handle) {
  struct event *event = handle;
  struct stream *stream = stream_of(stream_handle);
  event->capture = stream ? stream->capture : NULL;
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  event->launches = card_launches();
  event->plans = card_plans_run();
  return CUDA_SUCCESS;
}
API int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
  (void)flags;
  return cudaEventRecord(event, stream);
}
API int cudaEventElapsedTime(float *milliseconds, void *start_handle, void *end_handle) {
  struct event *start = start_handle, *end = end_handle;
  if (end->launches - start->launches == 1 && end->plans - start->plans == 1) {
    *milliseconds = PLAN_MICROSECONDS * 1e-3F;
    return CUDA_SUCCESS;
  }
  *milliseconds = (float)((double)(end->time.tv_sec - start->time.tv_sec) * 1e3 +
                          (double)(end->time.tv_nsec - start->time.tv_nsec) * 1e-6);
  return CUDA_SUCCESS;
}
API int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}
ACCEPTS(cudaEventQuery)
API int cudaEventSynchronize(void *handle) {
  (void)handle;
  card_synchronized();
  return CUDA_SUCCESS;
}

struct ipc_event {
  char bytes[64];
};
API int cudaIpcGetEventHandle(struct ipc_event *handle, void *event) {
  (void)event;
  memset(handle, 0, sizeof *handle);
  return CUDA_SUCCESS;
}
API int cudaIpcOpenEventHandle(void **event, struct ipc_event handle) {
  (void)handle;
  return cudaEventCreateWithFlags(event, 0);
}

/* ---- capture and graphs */

enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1 };

API int cudaStreamBeginCapture(void *handle, int mode) {
  struct stream *stream = stream_of(handle);
  (void)mode;
  if (!stream || stream->capture) return cuda_fail(CUDA_NOT_SUPPORTED);
  struct graph *graph = card_new_handle(sizeof *graph);
  if (!graph) return cuda_fail(CUDA_OUT_OF_MEMORY);
  pthread_mutex_lock(&lock);
  graph->id = ++captures;
  pthread_mutex_unlock(&lock);
  graph->origin = stream;
  graph->launches_before = card_launches();
  graph->sent_before = card_sent_bytes();
  stream->capture = graph;
  return CUDA_SUCCESS;
}
API int cudaStreamEndCapture(void *handle, void **graph_out) {
  struct stream *stream = stream_of(handle);
  struct graph *graph = stream ? stream->capture : NULL;
  *graph_out = graph;
  if (!graph) return cuda_fail(CUDA_CAPTURE_INVALIDATED);
  graph->nodes =
      card_launches() - graph->launches_before; /* also the libraries' kernels, whose streams are not looked at */
  graph->sent_bytes = card_sent_bytes() - graph->sent_before;
  card_note_sent(-graph->sent_bytes); /* it is sent when the graph is launched */
  for (struct stream *other = streams; other < used_end; other++)
    if (other->capture == graph) other->capture = NULL;
  return CUDA_SUCCESS;
}
API int cudaStreamIsCapturing(void *handle, int *status) {
  struct stream *stream = stream_of(handle);
  *status = stream && stream->capture ? CAPTURE_ACTIVE : CAPTURE_NONE;
  return CUDA_SUCCESS;
}
static int capture_info(void *handle, int *status, unsigned long long *id, void **graph, size_t *dependencies) {
  struct stream *stream = stream_of(handle);
  struct graph *capture = stream ? stream->capture : NULL;
  *status = capture ? CAPTURE_ACTIVE : CAPTURE_NONE;
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = capture;
  if (dependencies) *dependencies = 0;
  return CUDA_SUCCESS;
}
API int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph, const void **nodes,
                                    size_t *count) {
  if (nodes) *nodes = NULL;
  return capture_info(stream, status, id, graph, count);
}
#if ULLAGE_CUDA_MAJOR < 13
API int cudaStreamGetCaptureInfo_v3
#else
API int cudaStreamGetCaptureInfo
#endif
    (void *stream, int *status, unsigned long long *id, void **graph, const void **nodes, const void **edges,
     size_t *count) {
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, count);
}
API int cudaThreadExchangeStreamCaptureMode(int *mode) {
  static _Thread_local int current;
  int previous = current;
  current = *mode;
  *mode = previous;
  return CUDA_SUCCESS;
}
