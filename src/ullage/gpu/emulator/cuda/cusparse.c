/* libcusparse: descriptors keep their shape, every operation is a launch, every buffer is named in the journal.
 *
 * Buffer sizes are guesses, for the real ones are known only to a real GPU: a small constant for products, one word
 * for each row or element where an algorithm has to sort, to analyse or to count. How many elements a product of two
 * sparse matrices or their sum has depends on values: it is what was said before the call, else as if no two
 * contributions met. */
#include "cusparse.h"

#include "../../tracing/journal/journal.h"

/* Signatures are cuSPARSE's; most arguments say what to compute, and nothing is computed. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { SUCCESS = 0, ALLOC_FAILED = 2, INVALID_VALUE = 3, NOT_SUPPORTED = 10 };
enum { FEW_BYTES = 8, INDEX_BYTES = 8 };

static int run(const void *buffer, size_t bytes) {
  if (buffer && bytes) journal_workspace(buffer, bytes, card_current());
  card_launch(NULL);
  return SUCCESS;
}
static int make(void **out, size_t size) {
  *out = card_new_handle(size);
  return *out ? SUCCESS : ALLOC_FAILED;
}
static int drop(void *handle) {
  card_drop_handle(handle);
  return SUCCESS;
}
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

ULLAGE_API const char *cusparseGetErrorString(int status) {
  switch (status) {
    case SUCCESS: return "success";
    case ALLOC_FAILED: return "resource allocation failed";
    case INVALID_VALUE: return "an invalid value was used as an argument";
    case NOT_SUPPORTED: return "operation not supported";
    default: return "unknown error";
  }
}

/* ---- handles and descriptors */

struct analysis { /* of a solve or of a product of sparse matrices: the bytes of the buffers it requested */
  size_t bytes[2];
};

#define HANDLE(Create, Destroy, size)                                     \
  ULLAGE_API int cusparse##Create(void **out) { return make(out, size); } \
  ULLAGE_API int cusparse##Destroy(void *handle) { return drop(handle); }
HANDLE(Create, Destroy, 1)
HANDLE(CreateMatDescr, DestroyMatDescr, 1)
HANDLE(CreateBsrsv2Info, DestroyBsrsv2Info, sizeof(struct analysis))
HANDLE(CreateBsrsm2Info, DestroyBsrsm2Info, sizeof(struct analysis))
HANDLE(SpSV_createDescr, SpSV_destroyDescr, sizeof(struct analysis))
HANDLE(SpSM_createDescr, SpSM_destroyDescr, sizeof(struct analysis))
HANDLE(SpGEMM_createDescr, SpGEMM_destroyDescr, sizeof(struct analysis))
ACCEPTS(cusparseSetStream)
ACCEPTS(cusparseSetPointerMode)
ACCEPTS(cusparseSetMatType)
ACCEPTS(cusparseSetMatFillMode)
ACCEPTS(cusparseSetMatDiagType)
ACCEPTS(cusparseSetMatIndexBase)

static int make_sparse(struct sparse **out, int64_t rows, int64_t columns, int64_t elements) {
  int status = make((void **)out, sizeof **out);
  if (status == SUCCESS) **out = (struct sparse){rows, columns, elements};
  return status;
}
ULLAGE_API int cusparseCreateCsr(struct sparse **out, int64_t rows, int64_t columns, int64_t elements, void *offsets,
                                 void *indices, void *values, int offset_type, int index_type, int base, int type) {
  return make_sparse(out, rows, columns, elements);
}
ULLAGE_API int cusparseCreateCoo(struct sparse **out, int64_t rows, int64_t columns, int64_t elements,
                                 void *row_indices, void *column_indices, void *values, int index_type, int base,
                                 int type) {
  return make_sparse(out, rows, columns, elements);
}
ULLAGE_API int cusparseDestroySpMat(struct sparse *matrix) { return drop(matrix); }
ULLAGE_API int cusparseSpMatGetSize(const struct sparse *matrix, int64_t *rows, int64_t *columns, int64_t *elements) {
  *rows = matrix->rows, *columns = matrix->columns, *elements = matrix->elements;
  return SUCCESS;
}
ACCEPTS(cusparseCsrSetPointers)
ACCEPTS(cusparseCsrSetStridedBatch)
ACCEPTS(cusparseSpMatSetAttribute)

ULLAGE_API int cusparseCreateDnMat(void **out, int64_t rows, int64_t columns, int64_t leading, void *values, int type,
                                   int order) {
  return make(out, 1);
}
ULLAGE_API int cusparseCreateDnVec(void **out, int64_t size, void *values, int type) { return make(out, 1); }
ULLAGE_API int cusparseDestroyDnMat(void *matrix) { return drop(matrix); }
ULLAGE_API int cusparseDestroyDnVec(void *vector) { return drop(vector); }
ACCEPTS(cusparseDnMatSetStridedBatch)

/* ---- products with something dense */

ULLAGE_API int cusparseSpMV_bufferSize(void *h, int op, const void *alpha, const struct sparse *a, const void *x,
                                       const void *beta, void *y, int type, int algorithm, size_t *size) {
  *size = FEW_BYTES;
  return SUCCESS;
}
ULLAGE_API int cusparseSpMV(void *h, int op, const void *alpha, const struct sparse *a, const void *x, const void *beta,
                            void *y, int type, int algorithm, void *buffer) {
  return run(buffer, FEW_BYTES);
}
static size_t product_bytes(const struct sparse *a) { return FEW_BYTES + (size_t)a->rows * sizeof(int); }
ULLAGE_API int cusparseSpMM_bufferSize(void *h, int op_a, int op_b, const void *alpha, const struct sparse *a,
                                       const void *b, const void *beta, void *c, int type, int algorithm,
                                       size_t *size) {
  *size = product_bytes(a);
  return SUCCESS;
}
ULLAGE_API int cusparseSpMM(void *h, int op_a, int op_b, const void *alpha, const struct sparse *a, const void *b,
                            const void *beta, void *c, int type, int algorithm, void *buffer) {
  return run(buffer, product_bytes(a));
}
ULLAGE_API int cusparseSDDMM_bufferSize(void *h, int op_a, int op_b, const void *alpha, const void *a, const void *b,
                                        const void *beta, const struct sparse *c, int type, int algorithm,
                                        size_t *size) {
  *size = product_bytes(c);
  return SUCCESS;
}
ULLAGE_API int cusparseSDDMM(void *h, int op_a, int op_b, const void *alpha, const void *a, const void *b,
                             const void *beta, struct sparse *c, int type, int algorithm, void *buffer) {
  return run(buffer, product_bytes(c));
}
LAUNCHES(cusparseSDDMM_preprocess)

/* ---- solves: the analysis keeps its buffer until the last solve */

static size_t solve_bytes(int64_t rows, int64_t elements) {
  return FEW_BYTES + (size_t)(rows + elements) * INDEX_BYTES;
}

ULLAGE_API int cusparseSpSV_bufferSize(void *h, int op, const void *alpha, const struct sparse *a, const void *x,
                                       void *y, int type, int algorithm, struct analysis *analysis, size_t *size) {
  *size = analysis->bytes[0] = solve_bytes(a->rows, a->elements);
  return SUCCESS;
}
ULLAGE_API int cusparseSpSV_analysis(void *h, int op, const void *alpha, const struct sparse *a, const void *x, void *y,
                                     int type, int algorithm, struct analysis *analysis, void *buffer) {
  return run(buffer, analysis->bytes[0]);
}
LAUNCHES(cusparseSpSV_solve)
ULLAGE_API int cusparseSpSM_bufferSize(void *h, int op_a, int op_b, const void *alpha, const struct sparse *a,
                                       const void *b, void *c, int type, int algorithm, struct analysis *analysis,
                                       size_t *size) {
  *size = analysis->bytes[0] = solve_bytes(a->rows, a->elements);
  return SUCCESS;
}
ULLAGE_API int cusparseSpSM_analysis(void *h, int op_a, int op_b, const void *alpha, const struct sparse *a,
                                     const void *b, void *c, int type, int algorithm, struct analysis *analysis,
                                     void *buffer) {
  return run(buffer, analysis->bytes[0]);
}
LAUNCHES(cusparseSpSM_solve)

/* ---- the product of two sparse matrices, in two calls each: without a buffer a call says how large it must be */

static int estimate(size_t bytes, struct analysis *analysis, int which, size_t *size, void *buffer) {
  *size = analysis->bytes[which] = bytes;
  return buffer ? run(buffer, bytes) : SUCCESS;
}
/* Each element of A meets the elements of one row of B. */
static int64_t products(const struct sparse *a, const struct sparse *b) {
  return b->rows ? a->elements * b->elements / b->rows : 0;
}

static int64_t counted(int64_t most) {
  int64_t said;
  return card_answered(&said) ? said : most;
}

ULLAGE_API int cusparseSpGEMM_workEstimation(void *h, int op_a, int op_b, const void *alpha, const struct sparse *a,
                                             const struct sparse *b, const void *beta, struct sparse *c, int type,
                                             int algorithm, struct analysis *analysis, size_t *size, void *buffer) {
  return estimate(solve_bytes(a->rows, a->elements), analysis, 0, size, buffer);
}
ULLAGE_API int cusparseSpGEMM_compute(void *h, int op_a, int op_b, const void *alpha, const struct sparse *a,
                                      const struct sparse *b, const void *beta, struct sparse *c, int type,
                                      int algorithm, struct analysis *analysis, size_t *size, void *buffer) {
  c->elements = counted(smaller(products(a, b), c->rows * c->columns));
  return estimate(solve_bytes(a->rows, products(a, b)), analysis, 1, size, buffer);
}
LAUNCHES(cusparseSpGEMM_copy)

/* ---- sums of sparse matrices, and block sparse ones, for one type */

static size_t block_bytes(int block_rows, int blocks) { return solve_bytes(block_rows, blocks); }

#define OPERATIONS(T)                                                                                                 \
  ULLAGE_API int cusparse##T##csrgeam2_bufferSizeExt(                                                                 \
      void *h, int m, int n, const void *alpha, const void *a, int a_elements, const void *a_values,                  \
      const int *a_rows, const int *a_columns, const void *beta, const void *b, int b_elements, const void *b_values, \
      const int *b_rows, const int *b_columns, const void *c, const void *c_values, const int *c_rows,                \
      const int *c_columns, size_t *size) {                                                                           \
    *size = solve_bytes(m, 0);                                                                                        \
    return SUCCESS;                                                                                                   \
  }                                                                                                                   \
  ULLAGE_API int cusparse##T##csrgeam2(void *h, int m, int n, const void *alpha, const void *a, int a_elements,       \
                                       const void *a_values, const int *a_rows, const int *a_columns,                 \
                                       const void *beta, const void *b, int b_elements, const void *b_values,         \
                                       const int *b_rows, const int *b_columns, const void *c, void *c_values,        \
                                       int *c_rows, int *c_columns, void *buffer) {                                   \
    return run(buffer, solve_bytes(m, 0));                                                                            \
  }                                                                                                                   \
  ULLAGE_API int cusparse##T##bsrsv2_bufferSize(void *h, int direction, int op, int rows, int blocks, const void *a,  \
                                                void *values, const int *offsets, const int *indices, int side,       \
                                                struct analysis *analysis, int *size) {                               \
    analysis->bytes[0] = block_bytes(rows, blocks);                                                                   \
    *size = (int)analysis->bytes[0];                                                                                  \
    return SUCCESS;                                                                                                   \
  }                                                                                                                   \
  ULLAGE_API int cusparse##T##bsrsv2_analysis(void *h, int direction, int op, int rows, int blocks, const void *a,    \
                                              const void *values, const int *offsets, const int *indices, int side,   \
                                              struct analysis *analysis, int policy, void *buffer) {                  \
    return run(buffer, analysis->bytes[0]);                                                                           \
  }                                                                                                                   \
  ULLAGE_API int cusparse##T##bsrsm2_bufferSize(void *h, int direction, int op_a, int op_x, int rows, int columns,    \
                                                int blocks, const void *a, void *values, const int *offsets,          \
                                                const int *indices, int side, struct analysis *analysis, int *size) { \
    analysis->bytes[0] = block_bytes(rows, blocks);                                                                   \
    *size = (int)analysis->bytes[0];                                                                                  \
    return SUCCESS;                                                                                                   \
  }                                                                                                                   \
  ULLAGE_API int cusparse##T##bsrsm2_analysis(void *h, int direction, int op_a, int op_x, int rows, int columns,      \
                                              int blocks, const void *a, const void *values, const int *offsets,      \
                                              const int *indices, int side, struct analysis *analysis, int policy,    \
                                              void *buffer) {                                                         \
    return run(buffer, analysis->bytes[0]);                                                                           \
  }                                                                                                                   \
  LAUNCHES(cusparse##T##bsrsv2_solve)                                                                                 \
  LAUNCHES(cusparse##T##bsrsm2_solve) LAUNCHES(cusparse##T##bsrmv) LAUNCHES(cusparse##T##bsrmm)

OPERATIONS(S)
OPERATIONS(D)
OPERATIONS(C)
OPERATIONS(Z)

ULLAGE_API int cusparseXcsrgeam2Nnz(void *h, int m, int n, const void *a, int a_elements, const int *a_rows,
                                    const int *a_columns, const void *b, int b_elements, const int *b_rows,
                                    const int *b_columns, const void *c, int *c_rows, int *elements, void *buffer) {
  int64_t sum = smaller((int64_t)a_elements + b_elements, (int64_t)m * n);
  if (card_device_of((uint64_t)elements) < 0) *elements = (int)counted(sum);
  return run(buffer, solve_bytes(m, 0));
}

/* No pivot is zero. */
ULLAGE_API int cusparseXbsrsv2_zeroPivot(void *h, struct analysis *analysis, int *position) {
  if (card_device_of((uint64_t)position) < 0) *position = -1;
  return SUCCESS;
}
ULLAGE_API int cusparseXbsrsm2_zeroPivot(void *h, struct analysis *analysis, int *position) {
  return cusparseXbsrsv2_zeroPivot(h, analysis, position);
}

/* ---- conversion and sorting */

LAUNCHES(cusparseXcoo2csr)
LAUNCHES(cusparseCreateIdentityPermutation)

static size_t sort_bytes(int elements) { return FEW_BYTES + (size_t)elements * INDEX_BYTES; }
ULLAGE_API int cusparseXcoosort_bufferSizeExt(void *h, int m, int n, int elements, const int *rows, const int *columns,
                                              size_t *size) {
  *size = sort_bytes(elements);
  return SUCCESS;
}
ULLAGE_API int cusparseXcoosortByRow(void *h, int m, int n, int elements, int *rows, int *columns, int *permutation,
                                     void *buffer) {
  return run(buffer, sort_bytes(elements));
}
ULLAGE_API int cusparseXcsrsort_bufferSizeExt(void *h, int m, int n, int elements, const int *offsets,
                                              const int *indices, size_t *size) {
  *size = sort_bytes(elements);
  return SUCCESS;
}
ULLAGE_API int cusparseXcsrsort(void *h, int m, int n, int elements, const void *a, const int *offsets, int *indices,
                                int *permutation, void *buffer) {
  return run(buffer, sort_bytes(elements));
}
