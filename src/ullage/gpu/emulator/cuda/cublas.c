/* libcublas: a handle keeps its modes and its stream; every product is a launch. PyTorch hands it workspaces of its
 * own (cublasSetWorkspace), and those are named in the journal. */
#include "card.h"

#include <string.h>

#include "../../tracing/journal/journal.h"

enum { SUCCESS = 0, ALLOC_FAILED = 3 };
struct handle {
  void *stream;
  int math_mode, pointer_mode, atomics_mode;
};

ULLAGE_API int cublasCreate_v2(struct handle **out) {
  *out = card_new_handle(sizeof **out);
  if (*out) card_note_handle(card_current());
  return *out ? SUCCESS : ALLOC_FAILED;
}
ULLAGE_API int cublasDestroy_v2(struct handle *handle) {
  card_drop_handle(handle);
  return SUCCESS;
}
ULLAGE_API int cublasGetVersion_v2(struct handle *handle, int *version) {
  (void)handle;
  *version = card_cuda_version() * 10;
  return SUCCESS;
}
ULLAGE_API const char *cublasGetStatusString(int status) {
  return status == SUCCESS        ? "CUBLAS_STATUS_SUCCESS"
         : status == ALLOC_FAILED ? "CUBLAS_STATUS_ALLOC_FAILED"
                                  : "CUBLAS_STATUS_NOT_SUPPORTED";
}
ULLAGE_API int cublasSetStream_v2(struct handle *handle, void *stream) {
  handle->stream = stream;
  return SUCCESS;
}
ULLAGE_API int cublasGetStream_v2(struct handle *handle, void **stream) {
  *stream = handle->stream;
  return SUCCESS;
}
#define MODE(Name, field)                                            \
  ULLAGE_API int cublasSet##Name(struct handle *handle, int mode) {  \
    handle->field = mode;                                            \
    return SUCCESS;                                                  \
  }                                                                  \
  ULLAGE_API int cublasGet##Name(struct handle *handle, int *mode) { \
    *mode = handle->field;                                           \
    return SUCCESS;                                                  \
  }
// clang-format off: a list of macros
MODE(MathMode, math_mode) MODE(PointerMode_v2, pointer_mode) MODE(AtomicsMode, atomics_mode)
ACCEPTS(cublasSetSmCountTarget)
    // clang-format on

    ULLAGE_API int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t size) {
  (void)handle;
  journal_workspace(workspace, size, card_current());
  return SUCCESS;
}

/* Vectors and matrices between host and GPU (MAGMA, linked into torch's linear algebra). */
ULLAGE_API int cublasSetVectorAsync(int count, int size, const void *x, int stride, void *y, int step, void *stream) {
  (void)stride, (void)step, (void)stream;
  card_copy(y, x, (size_t)count * (size_t)size);
  return SUCCESS;
}
ULLAGE_API int cublasGetVectorAsync(int count, int size, const void *x, int stride, void *y, int step, void *stream) {
  (void)x, (void)stride, (void)stream;
  for (int i = 0; i < count; i++) memset((char *)y + (size_t)i * (size_t)step * (size_t)size, 0, (size_t)size);
  return SUCCESS;
}
ULLAGE_API int cublasGetMatrixAsync(int rows, int columns, int size, const void *a, int lda, void *b, int ldb,
                                    void *stream) {
  (void)a, (void)lda, (void)stream;
  for (int i = 0; i < columns; i++)
    memset((char *)b + (size_t)i * (size_t)ldb * (size_t)size, 0, (size_t)rows * (size_t)size);
  return SUCCESS;
}
// clang-format off: a list of macros
ACCEPTS(cublasSetMatrixAsync)

#define REAL(name) LAUNCHES(cublasS##name) LAUNCHES(cublasD##name)
#define COMPLEX(name) LAUNCHES(cublasC##name) LAUNCHES(cublasZ##name)
#define ALL(name) REAL(name) COMPLEX(name)

ALL(gemm_v2) ALL(gemmBatched) ALL(gemmStridedBatched) ALL(gemv_v2) ALL(trsm_v2) ALL(trsmBatched) ALL(trmm_v2) ALL(trmv_v2)
ALL(trsv_v2) ALL(symm_v2) ALL(symv_v2) ALL(syr_v2) ALL(syr2_v2) ALL(syr2k_v2) ALL(syrk_v2) ALL(axpy_v2) ALL(copy_v2) ALL(scal_v2)
ALL(swap_v2) ALL(rot_v2) ALL(rotg_v2) ALL(getrfBatched) ALL(getriBatched)
REAL(ger_v2) REAL(dot_v2) REAL(nrm2_v2) REAL(asum_v2) REAL(rotm_v2) REAL(rotmg_v2)
COMPLEX(dotc_v2) COMPLEX(dotu_v2) COMPLEX(gerc_v2) COMPLEX(geru_v2) COMPLEX(hemm_v2) COMPLEX(hemv_v2) COMPLEX(her_v2) COMPLEX(her2_v2)
COMPLEX(her2k_v2) COMPLEX(herk_v2)
// clang-format on

/* Batched solvers say through a host integer whether an argument was wrong. */
#define SOLVER(type)                                                                                                 \
  ULLAGE_API int cublas##type##geqrfBatched(void *handle, int m, int n, void *a, int lda, void *tau, int *info,      \
                                            int batch) {                                                             \
    (void)handle, (void)m, (void)n, (void)a, (void)lda, (void)tau, (void)batch;                                      \
    return solved(info);                                                                                             \
  }                                                                                                                  \
  ULLAGE_API int cublas##type##gelsBatched(void *handle, int transpose, int m, int n, int columns, void *a, int lda, \
                                           void *c, int ldc, int *info, int *device_info, int batch) {               \
    (void)handle, (void)transpose, (void)m, (void)n, (void)columns, (void)a, (void)lda, (void)c, (void)ldc;          \
    (void)device_info, (void)batch;                                                                                  \
    return solved(info);                                                                                             \
  }                                                                                                                  \
  ULLAGE_API int cublas##type##getrsBatched(void *handle, int transpose, int n, int columns, void *a, int lda,       \
                                            void *pivots, void *b, int ldb, int *info, int batch) {                  \
    (void)handle, (void)transpose, (void)n, (void)columns, (void)a, (void)lda, (void)pivots, (void)b, (void)ldb,     \
        (void)batch;                                                                                                 \
    return solved(info);                                                                                             \
  }
                    static int solved(int *info) {
  card_launch(NULL);
  *info = 0;
  return SUCCESS;
}
// clang-format off: a list of macros
SOLVER(S) SOLVER(D) SOLVER(C) SOLVER(Z)

LAUNCHES(cublasScasum_v2) LAUNCHES(cublasDzasum_v2) LAUNCHES(cublasScnrm2_v2) LAUNCHES(cublasDznrm2_v2) LAUNCHES(cublasCsrot_v2)
LAUNCHES(cublasZdrot_v2) LAUNCHES(cublasCsscal_v2) LAUNCHES(cublasZdscal_v2)
LAUNCHES(cublasIsamax_v2) LAUNCHES(cublasIdamax_v2) LAUNCHES(cublasIcamax_v2) LAUNCHES(cublasIzamax_v2)
LAUNCHES(cublasIsamin_v2) LAUNCHES(cublasIdamin_v2) LAUNCHES(cublasIcamin_v2) LAUNCHES(cublasIzamin_v2)
LAUNCHES(cublasGemmEx) LAUNCHES(cublasSgemmEx) LAUNCHES(cublasGemmBatchedEx) LAUNCHES(cublasGemmStridedBatchedEx) LAUNCHES(cublasDotEx)
LAUNCHES(cublasGemmGroupedBatchedEx) LAUNCHES(cublasSgemmGroupedBatched)

/* ---- what other libraries than PyTorch ask for */

TELLS_VERSION(cublasGetProperty, card_cuda_version() / 1000, card_cuda_version() % 1000 / 10)
    // clang-format on
    ULLAGE_API size_t cublasGetCudartVersion(void) {
  return (size_t)card_cuda_version();
}
ULLAGE_API const char *cublasGetStatusName(int status) { return cublasGetStatusString(status); }
ULLAGE_API int cublasGetSmCountTarget(struct handle *handle, int *count) {
  (void)handle;
  *count = 0; /* all of them */
  return SUCCESS;
}
ULLAGE_API int cublasSetVector(int count, int size, const void *x, int stride, void *y, int step) {
  return cublasSetVectorAsync(count, size, x, stride, y, step, NULL);
}
ULLAGE_API int cublasGetVector(int count, int size, const void *x, int stride, void *y, int step) {
  return cublasGetVectorAsync(count, size, x, stride, y, step, NULL);
}
ULLAGE_API int cublasGetMatrix(int rows, int columns, int size, const void *a, int lda, void *b, int ldb) {
  return cublasGetMatrixAsync(rows, columns, size, a, lda, b, ldb, NULL);
}
// clang-format off: a list of macros
ACCEPTS(cublasSetMatrix) ACCEPTS(cublasLoggerConfigure) ACCEPTS(cublasSetLoggerCallback) ACCEPTS(cublasInit) ACCEPTS(cublasShutdown)
    // clang-format on
    ULLAGE_API int cublasXtCreate(struct handle **out) {
  return cublasCreate_v2(out);
}
ULLAGE_API int cublasXtDestroy(struct handle *handle) { return cublasDestroy_v2(handle); }
// clang-format off: a list of macros
ACCEPTS(cublasXtDeviceSelect) ACCEPTS(cublasXtSetBlockDim) ACCEPTS(cublasXtSetPinningMemMode) ACCEPTS(cublasXtSetCpuRatio)
    // clang-format on
