/* libcusparseLt: products with 2:4 sparse matrices. Its descriptors lie in the caller's memory (512 bytes or more);
 * the first few bytes of each hold what is asked back. The workspace of a product is 0 here: the real one depends on
 * the algorithm, which only a real GPU can choose. */
#include "card.h"

#include <string.h>

#include "../../tracing/journal/journal.h"

/* Signatures are cuSPARSELt's; most arguments say what to compute, and nothing is computed. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { SUCCESS = 0, INVALID_VALUE = 3 };

struct matrix {
  int64_t rows, columns;
  int type;
};
enum { CONFIG_ID, CONFIG_MAX_ID, SEARCH_ITERATIONS, SPLIT_K, SPLIT_K_MODE, SPLIT_K_BUFFERS, SELECTION_ATTRIBUTES };
struct selection {
  int value[SELECTION_ATTRIBUTES];
};

ACCEPTS(cusparseLtInit)
ACCEPTS(cusparseLtDestroy)

ULLAGE_API int cusparseLtDenseDescriptorInit(const void *h, struct matrix *out, int64_t rows, int64_t columns,
                                             int64_t leading, uint32_t alignment, int type, int order) {
  *out = (struct matrix){rows, columns, type};
  return SUCCESS;
}
ULLAGE_API int cusparseLtStructuredDescriptorInit(const void *h, struct matrix *out, int64_t rows, int64_t columns,
                                                  int64_t leading, uint32_t alignment, int type, int order,
                                                  int sparsity) {
  return cusparseLtDenseDescriptorInit(h, out, rows, columns, leading, alignment, type, order);
}
ACCEPTS(cusparseLtMatDescriptorDestroy)

ACCEPTS(cusparseLtMatmulDescriptorInit)
ACCEPTS(cusparseLtMatmulDescSetAttribute)

ULLAGE_API
int cusparseLtMatmulAlgSelectionInit(const void *h, struct selection *out, const void *product, int algorithm) {
  *out = (struct selection){{[CONFIG_MAX_ID] = 1, [SEARCH_ITERATIONS] = 5, [SPLIT_K] = 1}};
  return SUCCESS;
}
static int *attribute_of(const struct selection *selection, int attribute, size_t size) {
  bool known = attribute >= 0 && attribute < SELECTION_ATTRIBUTES && size <= sizeof(int);
  return known ? (int *)&selection->value[attribute] : NULL;
}
ULLAGE_API int cusparseLtMatmulAlgSetAttribute(const void *h, struct selection *selection, int attribute,
                                               const void *data, size_t size) {
  int *value = attribute_of(selection, attribute, size);
  if (!value) return INVALID_VALUE;
  memcpy(value, data, size);
  return SUCCESS;
}
ULLAGE_API int cusparseLtMatmulAlgGetAttribute(const void *h, const struct selection *selection, int attribute,
                                               void *data, size_t size) {
  const int *value = attribute_of(selection, attribute, size);
  if (!value) return INVALID_VALUE;
  memcpy(data, value, size);
  return SUCCESS;
}

ACCEPTS(cusparseLtMatmulPlanInit)
ACCEPTS(cusparseLtMatmulPlanDestroy)
ULLAGE_API int cusparseLtMatmulGetWorkspace(const void *h, const void *plan, size_t *size) {
  *size = 0;
  return SUCCESS;
}
LAUNCHES(cusparseLtMatmul)
LAUNCHES(cusparseLtMatmulSearch)

/* ---- compression: half of the elements, and 2 bits of position for each of these. The buffer of the compression is
 * a guess: as much as the positions. */

static size_t matrix_bytes(const struct matrix *matrix) {
  static const int bytes[] = {4, 8, 2,
                              1}; /* cudaDataType: single, double, half, int8; all others that are allowed: 2 */
  int size = matrix->type >= 0 && matrix->type < (int)(sizeof bytes / sizeof *bytes) ? bytes[matrix->type] : 2;
  return (size_t)(matrix->rows * matrix->columns * size);
}
static size_t position_bytes(const struct matrix *matrix) {
  return (size_t)(matrix->rows * matrix->columns / 2 * 2 + 7) / 8;
}

ULLAGE_API int cusparseLtSpMMACompressedSize2(const void *h, const struct matrix *matrix, size_t *size,
                                              size_t *buffer_size) {
  *size = matrix_bytes(matrix) / 2 + position_bytes(matrix);
  *buffer_size = position_bytes(matrix);
  return SUCCESS;
}
ULLAGE_API int cusparseLtSpMMACompress2(const void *h, const struct matrix *matrix, int is_first, int op,
                                        const void *dense, void *compressed, void *buffer, void *stream) {
  if (buffer) journal_workspace(buffer, position_bytes(matrix), card_current());
  card_launch(NULL);
  return SUCCESS;
}

TELLS_VERSION(cusparseLtGetProperty, 0, 8)
ULLAGE_API int cusparseLtGetVersion(const void *h, int *version) {
  *version = 800;
  return SUCCESS;
}
ULLAGE_API const char *cusparseLtGetErrorName(int status) {
  return status == SUCCESS ? "CUSPARSE_STATUS_SUCCESS" : "CUSPARSE_STATUS_ERROR";
}
ULLAGE_API const char *cusparseLtGetErrorString(int status) { return status == SUCCESS ? "success" : "an error"; }
ACCEPTS(cusparseLtMatDescSetAttribute)
ACCEPTS(cusparseLtMatmulAlgSelectionDestroy)
LAUNCHES(cusparseLtSpMMAPrune)
LAUNCHES(cusparseLtSpMMAPrune2)
ULLAGE_API int cusparseLtSpMMAPruneCheck(const void *h, const void *product, const void *matrix, int *valid) {
  if (card_device_of((uint64_t)valid) < 0) *valid = 0; /* the matrix is sparse as it should be */
  return SUCCESS;
}
