/* libcudart: copies and fills of rows, boxes, arrays, symbols and batches. An array has no values: it reads as zero. */
#include <string.h>

#include "../../tracing/journal/journal.h"
#include "runtime.h"

API int cudaMemcpyPeer(void *destination, int to, const void *source, int from, size_t size) {
  (void)to, (void)from;
  return runtime_copy(destination, source, size);
}
API int cudaMemcpyPeerAsync(void *destination, int to, const void *source, int from, size_t size, void *stream) {
  (void)stream;
  return cudaMemcpyPeer(destination, to, source, from, size);
}
API int cudaMemcpy2D(void *destination, size_t destination_pitch, const void *source, size_t source_pitch, size_t width,
                     size_t height, int kind) {
  (void)kind;
  if (card_device_of((uint64_t)source) >= 0 && card_device_of((uint64_t)destination) < 0)
    journal_value_read(width * height);
  for (size_t row = 0; row < height; row++)
    card_copy((char *)destination + row * destination_pitch, (const char *)source + row * source_pitch, width);
  return CUDA_SUCCESS;
}
API int cudaMemcpy2DAsync(void *destination, size_t destination_pitch, const void *source, size_t source_pitch,
                          size_t width, size_t height, int kind, void *stream) {
  (void)stream;
  return cudaMemcpy2D(destination, destination_pitch, source, source_pitch, width, height, kind);
}

/* struct cudaMemcpy3DParms */
struct box {
  void *from_array;
  size_t from_position[3];
  struct pitched from;
  void *to_array;
  size_t to_position[3];
  struct pitched to;
  struct extent extent;
  int kind;
};
static char *corner(const struct pitched *plane, const size_t position[3]) {
  return (char *)plane->address + position[2] * plane->pitch * plane->height + position[1] * plane->pitch + position[0];
}
API int cudaMemcpy3D(const struct box *box) {
  if (box->to_array) return CUDA_SUCCESS; /* what an array holds is never read */
  char *to = corner(&box->to, box->to_position),
       *from = box->from_array ? NULL : corner(&box->from, box->from_position);
  for (size_t layer = 0; layer < box->extent.depth; layer++) {
    char *plane = to + layer * box->to.pitch * box->to.height;
    if (from) {
      cudaMemcpy2D(plane, box->to.pitch, from + layer * box->from.pitch * box->from.height, box->from.pitch,
                   box->extent.width, box->extent.height, 0);
      continue;
    }
    for (size_t row = 0; row < box->extent.height; row++) card_fill(plane + row * box->to.pitch, 0, box->extent.width);
  }
  return CUDA_SUCCESS;
}
API int cudaMemcpy3DAsync(const struct box *box, void *stream) {
  (void)stream;
  return cudaMemcpy3D(box);
}
API int cudaMemcpyBatchAsync(void **destinations, const void **sources, const size_t *sizes, size_t count) {
  for (size_t i = 0; i < count; i++) runtime_copy(destinations[i], sources[i], sizes[i]);
  return CUDA_SUCCESS;
}

/* ---- arrays and symbols */

ACCEPTS(cudaMemcpyToArray)
ACCEPTS(cudaMemcpyToArrayAsync)
ACCEPTS(cudaMemcpy2DToArray)
ACCEPTS(cudaMemcpy2DToArrayAsync)
ACCEPTS(cudaMemcpyArrayToArray)
ACCEPTS(cudaMemcpy2DArrayToArray)
ACCEPTS(cudaMemcpy3DPeer)
ACCEPTS(cudaMemcpy3DPeerAsync)
API int cudaMemcpyFromArray(void *destination, const void *array, size_t x, size_t y, size_t size, int kind) {
  (void)array, (void)x, (void)y, (void)kind;
  card_fill(destination, 0, size);
  return CUDA_SUCCESS;
}
API int cudaMemcpyFromArrayAsync(void *destination, const void *array, size_t x, size_t y, size_t size, int kind,
                                 void *stream) {
  (void)stream;
  return cudaMemcpyFromArray(destination, array, x, y, size, kind);
}
API int cudaMemcpy2DFromArray(void *destination, size_t pitch, const void *array, size_t x, size_t y, size_t width,
                              size_t height, int kind) {
  (void)array, (void)x, (void)y, (void)kind;
  for (size_t row = 0; row < height; row++) card_fill((char *)destination + row * pitch, 0, width);
  return CUDA_SUCCESS;
}
API int cudaMemcpy2DFromArrayAsync(void *destination, size_t pitch, const void *array, size_t x, size_t y, size_t width,
                                   size_t height, int kind, void *stream) {
  (void)stream;
  return cudaMemcpy2DFromArray(destination, pitch, array, x, y, width, height, kind);
}
API int cudaMemcpyFromSymbol(void *destination, const void *symbol, size_t size, size_t offset, int kind) {
  (void)symbol, (void)offset, (void)kind;
  card_fill(destination, 0, size);
  return CUDA_SUCCESS;
}
API int cudaMemcpyFromSymbolAsync(void *destination, const void *symbol, size_t size, size_t offset, int kind,
                                  void *stream) {
  (void)stream;
  return cudaMemcpyFromSymbol(destination, symbol, size, offset, kind);
}

/* ---- fills */

API int cudaMemset2D(void *address, size_t pitch, int value, size_t width, size_t height) {
  for (size_t row = 0; row < height; row++) card_fill((char *)address + row * pitch, value, width);
  return CUDA_SUCCESS;
}
API int cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height, void *stream) {
  (void)stream;
  return cudaMemset2D(address, pitch, value, width, height);
}
API int cudaMemset3D(struct pitched plane, int value, struct extent extent) {
  for (size_t layer = 0; layer < extent.depth; layer++)
    cudaMemset2D((char *)plane.address + layer * plane.pitch * plane.height, plane.pitch, value, extent.width,
                 extent.height);
  return CUDA_SUCCESS;
}
API int cudaMemset3DAsync(struct pitched plane, int value, struct extent extent, void *stream) {
  (void)stream;
  return cudaMemset3D(plane, value, extent);
}
