/* libcusparse: the generic functions that PyTorch does not call and others do: vectors, conversions, what is constant.
 *
 * Buffers are guesses as in cusparse.c: one word for each element where something is counted or sorted. A descriptor does not keep
 * the addresses that it was given. */
#include "cusparse.h"

#include "../../tracing/journal/journal.h"

/* Signatures are cuSPARSE's; most arguments say what to compute, and nothing is computed. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { SUCCESS = 0, ALLOC_FAILED = 2 };
enum { FEW_BYTES = 8, INDEX_BYTES = 8 };

int cusparseCreateDnMat(void **out, int64_t rows, int64_t columns, int64_t leading, void *values, int type, int order);
int cusparseCreateDnVec(void **out, int64_t size, void *values, int type);

static int make(struct sparse **out, int64_t rows, int64_t columns, int64_t elements) {
  *out = card_new_handle(sizeof **out);
  if (!*out) return ALLOC_FAILED;
  **out = (struct sparse){rows, columns, elements};
  return SUCCESS;
}
static int few(size_t *size) {
  *size = FEW_BYTES;
  return SUCCESS;
}

// clang-format off: a list of macros
TELLS_VERSION(cusparseGetProperty, 12, 6)
// clang-format on
ULLAGE_API int cusparseGetVersion(void *h, int *version) {
  *version = 12600;
  return SUCCESS;
}
ULLAGE_API const char *cusparseGetErrorName(int status) {
  return status == SUCCESS        ? "CUSPARSE_STATUS_SUCCESS"
         : status == ALLOC_FAILED ? "CUSPARSE_STATUS_ALLOC_FAILED"
                                  : "CUSPARSE_STATUS_NOT_SUPPORTED";
}

/* ---- descriptors */

ULLAGE_API int cusparseCreateSpVec(struct sparse **out, int64_t size, int64_t elements, void *indices, void *values,
                                   int index_type, int base, int type) {
  return make(out, size, 1, elements);
}
ULLAGE_API int cusparseDestroySpVec(struct sparse *vector) {
  card_drop_handle(vector);
  return SUCCESS;
}
ULLAGE_API int cusparseCreateCsc(struct sparse **out, int64_t rows, int64_t columns, int64_t elements) {
  return make(out, rows, columns, elements);
}
ULLAGE_API int cusparseCreateConstCsr(struct sparse **out, int64_t rows, int64_t columns, int64_t elements) {
  return make(out, rows, columns, elements);
}
ULLAGE_API int cusparseCreateConstCsc(struct sparse **out, int64_t rows, int64_t columns, int64_t elements) {
  return make(out, rows, columns, elements);
}
ULLAGE_API int cusparseCreateConstCoo(struct sparse **out, int64_t rows, int64_t columns, int64_t elements) {
  return make(out, rows, columns, elements);
}
ULLAGE_API int cusparseCreateConstSpVec(struct sparse **out, int64_t size, int64_t elements) {
  return make(out, size, 1, elements);
}
ULLAGE_API int cusparseCreateBsr(struct sparse **out, int64_t rows, int64_t columns, int64_t blocks, int64_t height,
                                 int64_t width) {
  return make(out, rows * height, columns * width, blocks * height * width);
}
ULLAGE_API int cusparseCreateBlockedEll(struct sparse **out, int64_t rows, int64_t columns, int64_t block,
                                        int64_t width) {
  return make(out, rows, columns, rows * width);
}
ULLAGE_API int cusparseCreateConstDnMat(void **out, int64_t rows, int64_t columns, int64_t leading, void *values,
                                        int type, int order) {
  return cusparseCreateDnMat(out, rows, columns, leading, values, type, order);
}
ULLAGE_API int cusparseCreateConstDnVec(void **out, int64_t size, void *values, int type) {
  return cusparseCreateDnVec(out, size, values, type);
}
// clang-format off: a list of macros
ACCEPTS(cusparseCooSetPointers) ACCEPTS(cusparseCscSetPointers) ACCEPTS(cusparseCooSetStridedBatch) ACCEPTS(cusparseBsrSetStridedBatch)
ACCEPTS(cusparseDnMatSetValues) ACCEPTS(cusparseDnVecSetValues) ACCEPTS(cusparseSpMatSetValues) ACCEPTS(cusparseSpVecSetValues)

/* ---- operations */

LAUNCHES(cusparseAxpby) LAUNCHES(cusparseGather) LAUNCHES(cusparseScatter) LAUNCHES(cusparseRot) LAUNCHES(cusparseSpVV)
LAUNCHES(cusparseSpMV_preprocess) LAUNCHES(cusparseSpMM_preprocess) LAUNCHES(cusparseSparseToDense) LAUNCHES(cusparseDenseToSparse_convert)
LAUNCHES(cusparseDenseToSparse_analysis) LAUNCHES(cusparseCsr2cscEx2) LAUNCHES(cusparseXcsr2coo) LAUNCHES(cusparseXcoosortByColumn)
LAUNCHES(cusparseXcscsort)
    // clang-format on
    ULLAGE_API
    int cusparseSpVV_bufferSize(void *h, int op, const void *x, const void *y, void *out, int type, size_t *size) {
  return few(size);
}
ULLAGE_API int cusparseSparseToDense_bufferSize(void *h, const void *from, void *to, int algorithm, size_t *size) {
  return few(size);
}
ULLAGE_API int cusparseDenseToSparse_bufferSize(void *h, const void *from, struct sparse *to, int algorithm,
                                                size_t *size) {
  *size = FEW_BYTES + (size_t)to->rows * INDEX_BYTES;
  return SUCCESS;
}
ULLAGE_API int cusparseCsr2cscEx2_bufferSize(void *h, int rows, int columns, int elements, const void *values,
                                             const int *offsets, const int *indices, void *to_values, int *to_offsets,
                                             int *to_indices, int type, int copies, int base, int algorithm,
                                             size_t *size) {
  *size = FEW_BYTES + (size_t)elements * INDEX_BYTES;
  return SUCCESS;
}
ULLAGE_API int cusparseXcscsort_bufferSizeExt(void *h, int m, int n, int elements, const int *offsets,
                                              const int *indices, size_t *size) {
  *size = FEW_BYTES + (size_t)elements * INDEX_BYTES;
  return SUCCESS;
}
