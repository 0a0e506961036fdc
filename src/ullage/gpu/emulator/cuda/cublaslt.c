/* libcublasLt: one algorithm for every product, which needs no workspace. */
#include "card.h"

#include <string.h>

#include "../../tracing/journal/journal.h"

enum { SUCCESS = 0, ALLOC_FAILED = 3 };

/* cublasLtMatmulHeuristicResult_t */
struct heuristic {
  uint64_t algorithm[8];
  size_t workspace_size;
  int state;
  float waves;
  int reserved[4];
};

static int create(void **out) {
  *out = card_new_handle(16);
  return *out ? SUCCESS : ALLOC_FAILED;
}
static int destroy(void *handle) {
  card_drop_handle(handle);
  return SUCCESS;
}
#define DESCRIPTOR(Name)                                                           \
  ULLAGE_API int cublasLt##Name##Create(void **out) { return create(out); }        \
  ULLAGE_API int cublasLt##Name##Destroy(void *handle) { return destroy(handle); } \
  ACCEPTS(cublasLt##Name##SetAttribute)
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatmulPreference)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatrixTransformDesc)

ULLAGE_API int cublasLtCreate(void **out) { return create(out); }
ULLAGE_API int cublasLtDestroy(void *handle) { return destroy(handle); }
ULLAGE_API size_t cublasLtGetVersion(void) { return (size_t)card_cuda_version() * 10; }
ULLAGE_API size_t cublasLtGetCudartVersion(void) { return (size_t)card_cuda_version(); }

ULLAGE_API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                              void *preference, int requested, struct heuristic *results, int *count) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *count = requested > 0;
  if (*count) memset(results, 0, sizeof *results);
  return SUCCESS;
}
ULLAGE_API int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int id,
                                      uint64_t *algorithm) {
  (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
  memset(algorithm, 0, 64);
  algorithm[0] = (uint64_t)id;
  return SUCCESS;
}
ULLAGE_API int cublasLtMatmulAlgoCheck(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                       const void *algorithm, struct heuristic *result) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)algorithm;
  memset(result, 0, sizeof *result);
  return SUCCESS;
}
ACCEPTS(cublasLtMatmulAlgoConfigSetAttribute)
ULLAGE_API int cublasLtMatmulAlgoConfigGetAttribute(const void *algorithm, int attribute, void *out, size_t size,
                                                    size_t *written) {
  (void)algorithm, (void)attribute;
  memset(out, 0, size);
  if (written) *written = size;
  return SUCCESS;
}

ULLAGE_API int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, void *a_layout,
                              const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d,
                              void *d_layout, const void *algorithm, void *workspace, size_t size, void *stream) {
  (void)handle, (void)operation, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c,
      (void)c_layout;
  (void)d, (void)d_layout, (void)algorithm, (void)stream;
  journal_workspace(workspace, size, card_current());
  card_launch(NULL);
  return SUCCESS;
}
LAUNCHES(cublasLtMatrixTransform)

/* ---- what other libraries than PyTorch ask for */

TELLS_VERSION(cublasLtGetProperty, card_cuda_version() / 1000, card_cuda_version() % 1000 / 10)
ULLAGE_API const char *cublasLtGetStatusName(int status) {
  return status == SUCCESS        ? "CUBLAS_STATUS_SUCCESS"
         : status == ALLOC_FAILED ? "CUBLAS_STATUS_ALLOC_FAILED"
                                  : "CUBLAS_STATUS_NOT_SUPPORTED";
}
ULLAGE_API const char *cublasLtGetStatusString(int status) { return cublasLtGetStatusName(status); }
/* A descriptor in the caller's own memory: of the size that it has given. */
static int init(void *descriptor, size_t size) {
  memset(descriptor, 0, size);
  return SUCCESS;
}
ULLAGE_API int cublasLtMatmulDescInit_internal(void *descriptor, size_t size) { return init(descriptor, size); }
ULLAGE_API int cublasLtMatmulPreferenceInit_internal(void *descriptor, size_t size) { return init(descriptor, size); }
ULLAGE_API int cublasLtMatrixLayoutInit_internal(void *descriptor, size_t size) { return init(descriptor, size); }
ULLAGE_API int cublasLtMatrixTransformDescInit_internal(void *descriptor, size_t size) {
  return init(descriptor, size);
}
/* What was set is not kept: everything reads as zero, the default of most. */
#define READS_ZERO(name)                                                                                \
  ULLAGE_API int name(const void *descriptor, int attribute, void *out, size_t size, size_t *written) { \
    (void)descriptor, (void)attribute;                                                                  \
    if (out && size) memset(out, 0, size);                                                              \
    if (written) *written = size;                                                                       \
    return SUCCESS;                                                                                     \
  }
READS_ZERO(cublasLtMatmulDescGetAttribute)
READS_ZERO(cublasLtMatmulPreferenceGetAttribute)
READS_ZERO(cublasLtMatrixLayoutGetAttribute)
READS_ZERO(cublasLtMatrixTransformDescGetAttribute)
READS_ZERO(cublasLtMatmulAlgoCapGetAttribute)
ULLAGE_API int cublasLtMatmulAlgoGetIds(void *handle, int compute, int scale, int a, int b, int c, int d, int requested,
                                        int *ids, int *count) {
  (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
  *count = requested > 0;
  if (*count) ids[0] = 0;
  return SUCCESS;
}
