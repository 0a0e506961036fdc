/* libcusolver, dense: every factorisation is a launch, every workspace is named in the journal.
 *
 * Sizes are guesses unless they say otherwise; the real ones are known only to a real GPU. They follow what LAPACK
 * documents for the same routine with blocks of 64 columns, and are never 0. Sizes are counted in elements, and in
 * bytes by the 64-bit interface (cusolverDnX...). Host workspace is asked for by geev only, for one copy of the matrix.
 * What a routine tells about its success lies on the GPU: it reads as 0, which is success. */
#include "card.h"

#include <limits.h>

#include "../../tracing/journal/journal.h"

/* Signatures are cuSOLVER's; most arguments say what to compute, and nothing is computed. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { SUCCESS = 0, ALLOC_FAILED = 2 };
enum { BLOCK = 64 };

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int answer(int64_t elements, int *out) {
  *out = (int)smaller(larger(1, elements), INT_MAX);
  return SUCCESS;
}
static int answer_bytes(int64_t elements, int type, size_t *device, size_t *host, int64_t host_elements) {
  static const int bytes[] = {4, 8, 2, 1, 8, 16, 4, 2}; /* cudaDataType: real and complex, single, double, half, int8 */
  int size = type >= 0 && type < (int)(sizeof bytes / sizeof *bytes) ? bytes[type] : 16;
  *device = (size_t)(larger(1, elements) * size);
  *host = (size_t)(host_elements * size);
  return SUCCESS;
}
static int run(const void *workspace, int64_t bytes) {
  if (workspace && bytes > 0) journal_workspace(workspace, (size_t)bytes, card_current());
  card_launch(NULL);
  return SUCCESS;
}

/* ---- what a routine needs, in elements */

static int64_t factor_elements(int64_t columns) { return BLOCK * columns; }
static int64_t svd_elements(int64_t m, int64_t n) { return 3 * smaller(m, n) + larger(m, n) + BLOCK * (m + n); }
static int64_t jacobi_svd_elements(int64_t m, int64_t n) { return smaller(m, n) * (m + n) + larger(m, n); }
static int64_t eigen_elements(int64_t n) { return 2 * n * n + 6 * n + 1; }
static int64_t general_eigen_elements(int64_t n) { return n * n + 3 * n; }
/* Not a guess for small matrices: cuSOLVER pads them to 32 x 32 (sizes published in cupy issue 7261). */
static int64_t batched_jacobi_elements(int64_t n, int64_t batch) {
  return 1028 + batch * (larger(n, 32) * larger(n, 32) + 25);
}

/* ---- handles and parameters */

struct empty {
  int nothing;
};
#define HANDLE(Create, Destroy)                   \
  ULLAGE_API int cusolverDn##Create(void **out) { \
    *out = card_new_handle(sizeof(struct empty)); \
    return *out ? SUCCESS : ALLOC_FAILED;         \
  }                                               \
  ULLAGE_API int cusolverDn##Destroy(void *p) {   \
    card_drop_handle(p);                          \
    return SUCCESS;                               \
  }
// clang-format off: a list of macros
HANDLE(Create, Destroy) HANDLE(CreateParams, DestroyParams)
HANDLE(CreateGesvdjInfo, DestroyGesvdjInfo) HANDLE(CreateSyevjInfo, DestroySyevjInfo)
ACCEPTS(cusolverDnSetStream)
ACCEPTS(cusolverDnXgesvdjSetTolerance) ACCEPTS(cusolverDnXgesvdjSetMaxSweeps) ACCEPTS(cusolverDnXgesvdjSetSortEig)
ACCEPTS(cusolverDnXsyevjSetSortEig)
// clang-format on

/* ---- the 32-bit interface, for one type: its letter, the bytes of an element, and what its orthogonal (or, un) and
 * symmetric (sy, he) routines are called */

#define SOLVE(T)                 \
  LAUNCHES(cusolverDn##T##potrs) \
  LAUNCHES(cusolverDn##T##potrfBatched) LAUNCHES(cusolverDn##T##potrsBatched) LAUNCHES(cusolverDn##T##getrs)

#define FACTORIZE(T, bytes, or)                                                                                      \
  ULLAGE_API int cusolverDn##T##potrf_bufferSize(void *h, int uplo, int n, void *a, int lda, int *size) {            \
    return answer(factor_elements(n), size);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##potrf(void *h, int uplo, int n, void *a, int lda, void *work, int size, int *info) { \
    return run(work, (int64_t)size * bytes);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##getrf_bufferSize(void *h, int m, int n, void *a, int lda, int *size) {               \
    return answer(factor_elements(larger(m, n)), size);                                                              \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##getrf(void *h, int m, int n, void *a, int lda, void *work, int *pivots, int *info) { \
    return run(work, factor_elements(larger(m, n)) * bytes);                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##geqrf_bufferSize(void *h, int m, int n, void *a, int lda, int *size) {               \
    return answer(factor_elements(n), size);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##geqrf(void *h, int m, int n, void *a, int lda, void *tau, void *work, int size,      \
                                      int *info) {                                                                   \
    return run(work, (int64_t)size * bytes);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##or##gqr_bufferSize(void *h, int m, int n, int k, const void *a, int lda,             \
                                                   const void *tau, int *size) {                                     \
    return answer(factor_elements(n), size);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##or##gqr(void *h, int m, int n, int k, void *a, int lda, const void *tau, void *work, \
                                        int size, int *info) {                                                       \
    return run(work, (int64_t)size * bytes);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##or##mqr_bufferSize(void *h, int side, int trans, int m, int n, int k, const void *a, \
                                                   int lda, const void *tau, const void *c, int ldc, int *size) {    \
    enum { LEFT };                                                                                                   \
    return answer(factor_elements(side == LEFT ? n : m), size);                                                      \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##or##mqr(void *h, int side, int trans, int m, int n, int k, const void *a, int lda,   \
                                        const void *tau, void *c, int ldc, void *work, int size, int *info) {        \
    return run(work, (int64_t)size * bytes);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##sytrf_bufferSize(void *h, int n, void *a, int lda, int *size) {                      \
    return answer(factor_elements(n), size);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##sytrf(void *h, int uplo, int n, void *a, int lda, int *pivots, void *work, int size, \
                                      int *info) {                                                                   \
    return run(work, (int64_t)size * bytes);                                                                         \
  }

#define SINGULAR_VALUES(T, bytes)                                                                                      \
  ULLAGE_API int cusolverDn##T##gesvd_bufferSize(void *h, int m, int n, int *size) {                                   \
    return answer(svd_elements(m, n), size);                                                                           \
  }                                                                                                                    \
  ULLAGE_API int cusolverDn##T##gesvd(void *h, signed char jobu, signed char jobvt, int m, int n, void *a, int lda,    \
                                      void *s, void *u, int ldu, void *vt, int ldvt, void *work, int size,             \
                                      void *rwork, int *info) {                                                        \
    return run(work, (int64_t)size * bytes);                                                                           \
  }                                                                                                                    \
  ULLAGE_API int cusolverDn##T##gesvdj_bufferSize(void *h, int job, int economy, int m, int n, const void *a, int lda, \
                                                  const void *s, const void *u, int ldu, const void *v, int ldv,       \
                                                  int *size, void *parameters) {                                       \
    return answer(jacobi_svd_elements(m, n), size);                                                                    \
  }                                                                                                                    \
  ULLAGE_API int cusolverDn##T##gesvdj(void *h, int job, int economy, int m, int n, void *a, int lda, void *s,         \
                                       void *u, int ldu, void *v, int ldv, void *work, int size, int *info,            \
                                       void *parameters) {                                                             \
    return run(work, (int64_t)size * bytes);                                                                           \
  }                                                                                                                    \
  ULLAGE_API int cusolverDn##T##gesvdjBatched_bufferSize(void *h, int job, int m, int n, const void *a, int lda,       \
                                                         const void *s, const void *u, int ldu, const void *v,         \
                                                         int ldv, int *size, void *parameters, int batch) {            \
    return answer(batched_jacobi_elements(larger(m, n), batch), size);                                                 \
  }                                                                                                                    \
  ULLAGE_API int cusolverDn##T##gesvdjBatched(void *h, int job, int m, int n, void *a, int lda, void *s, void *u,      \
                                              int ldu, void *v, int ldv, void *work, int size, int *info,              \
                                              void *parameters, int batch) {                                           \
    return run(work, (int64_t)size * bytes);                                                                           \
  }                                                                                                                    \
  ULLAGE_API int cusolverDn##T##gesvdaStridedBatched_bufferSize(                                                       \
      void *h, int job, int rank, int m, int n, const void *a, int lda, long long a_step, const void *s,               \
      long long s_step, const void *u, int ldu, long long u_step, const void *v, int ldv, long long v_step, int *size, \
      int batch) {                                                                                                     \
    return answer(batch * jacobi_svd_elements(m, n), size);                                                            \
  }                                                                                                                    \
  ULLAGE_API int cusolverDn##T##gesvdaStridedBatched(void *h, int job, int rank, int m, int n, const void *a, int lda, \
                                                     long long a_step, void *s, long long s_step, void *u, int ldu,    \
                                                     long long u_step, void *v, int ldv, long long v_step, void *work, \
                                                     int size, int *info, double *residuals, int batch) {              \
    for (int i = 0; residuals && i < batch; i++) residuals[i] = 0; /* on the host */                                   \
    return run(work, (int64_t)size * bytes);                                                                           \
  }

#define EIGENVALUES(T, bytes, sy)                                                                                    \
  ULLAGE_API int cusolverDn##T##sy##evd_bufferSize(void *h, int job, int uplo, int n, const void *a, int lda,        \
                                                   const void *w, int *size) {                                       \
    return answer(eigen_elements(n), size);                                                                          \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##sy##evd(void *h, int job, int uplo, int n, void *a, int lda, void *w, void *work,    \
                                        int size, int *info) {                                                       \
    return run(work, (int64_t)size * bytes);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##sy##evj_bufferSize(void *h, int job, int uplo, int n, const void *a, int lda,        \
                                                   const void *w, int *size, void *parameters) {                     \
    return answer(eigen_elements(n), size);                                                                          \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##sy##evj(void *h, int job, int uplo, int n, void *a, int lda, void *w, void *work,    \
                                        int size, int *info, void *parameters) {                                     \
    return run(work, (int64_t)size * bytes);                                                                         \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##sy##evjBatched_bufferSize(void *h, int job, int uplo, int n, const void *a, int lda, \
                                                          const void *w, int *size, void *parameters, int batch) {   \
    return answer(batched_jacobi_elements(n, batch), size);                                                          \
  }                                                                                                                  \
  ULLAGE_API int cusolverDn##T##sy##evjBatched(void *h, int job, int uplo, int n, void *a, int lda, void *w,         \
                                               void *work, int size, int *info, void *parameters, int batch) {       \
    return run(work, (int64_t)size * bytes);                                                                         \
  }

    // clang-format off: a list of macros
SOLVE(S) FACTORIZE(S, 4, or) SINGULAR_VALUES(S, 4) EIGENVALUES(S, 4, sy)
SOLVE(D) FACTORIZE(D, 8, or) SINGULAR_VALUES(D, 8) EIGENVALUES(D, 8, sy)
SOLVE(C) FACTORIZE(C, 8, un) SINGULAR_VALUES(C, 8) EIGENVALUES(C, 8, he)
SOLVE(Z) FACTORIZE(Z, 16, un) SINGULAR_VALUES(Z, 16) EIGENVALUES(Z, 16, he)
    // clang-format on

    /* ---- the 64-bit interface */

    ULLAGE_API int cusolverDnXpotrf_bufferSize(void *h, void *parameters, int uplo, int64_t n, int a_type,
                                               const void *a, int64_t lda, int type, size_t *device, size_t *host) {
  return answer_bytes(factor_elements(n), type, device, host, 0);
}
ULLAGE_API int cusolverDnXpotrf(void *h, void *parameters, int uplo, int64_t n, int a_type, void *a, int64_t lda,
                                int type, void *work, size_t bytes, void *host_work, size_t host_bytes, int *info) {
  return run(work, (int64_t)bytes);
}
// clang-format off: a list of macros
LAUNCHES(cusolverDnXpotrs)
// clang-format on

ULLAGE_API int cusolverDnXgeqrf_bufferSize(void *h, void *parameters, int64_t m, int64_t n, int a_type, const void *a,
                                           int64_t lda, int tau_type, const void *tau, int type, size_t *device,
                                           size_t *host) {
  return answer_bytes(factor_elements(n), type, device, host, 0);
}
ULLAGE_API int cusolverDnXgeqrf(void *h, void *parameters, int64_t m, int64_t n, int a_type, void *a, int64_t lda,
                                int tau_type, void *tau, int type, void *work, size_t bytes, void *host_work,
                                size_t host_bytes, int *info) {
  return run(work, (int64_t)bytes);
}

ULLAGE_API int cusolverDnXsytrs_bufferSize(void *h, int uplo, int64_t n, int64_t columns, int type, const void *a,
                                           int64_t lda, const int64_t *pivots, int b_type, void *b, int64_t ldb,
                                           size_t *device, size_t *host) {
  return answer_bytes(factor_elements(n), type, device, host, 0);
}
ULLAGE_API int cusolverDnXsytrs(void *h, int uplo, int64_t n, int64_t columns, int type, const void *a, int64_t lda,
                                const int64_t *pivots, int b_type, void *b, int64_t ldb, void *work, size_t bytes,
                                void *host_work, size_t host_bytes, int *info) {
  return run(work, (int64_t)bytes);
}

ULLAGE_API int cusolverDnXsyevd_bufferSize(void *h, void *parameters, int job, int uplo, int64_t n, int a_type,
                                           const void *a, int64_t lda, int w_type, const void *w, int type,
                                           size_t *device, size_t *host) {
  return answer_bytes(eigen_elements(n), type, device, host, 0);
}
ULLAGE_API int cusolverDnXsyevd(void *h, void *parameters, int job, int uplo, int64_t n, int a_type, void *a,
                                int64_t lda, int w_type, void *w, int type, void *work, size_t bytes, void *host_work,
                                size_t host_bytes, int *info) {
  return run(work, (int64_t)bytes);
}

ULLAGE_API int cusolverDnXsyevBatched_bufferSize(void *h, void *parameters, int job, int uplo, int64_t n, int a_type,
                                                 const void *a, int64_t lda, int w_type, const void *w, int type,
                                                 size_t *device, size_t *host, int64_t batch) {
  return answer_bytes(batched_jacobi_elements(n, batch), type, device, host, 0);
}
ULLAGE_API int cusolverDnXsyevBatched(void *h, void *parameters, int job, int uplo, int64_t n, int a_type, void *a,
                                      int64_t lda, int w_type, void *w, int type, void *work, size_t bytes,
                                      void *host_work, size_t host_bytes, int *info, int64_t batch) {
  return run(work, (int64_t)bytes);
}

ULLAGE_API int cusolverDnXgeev_bufferSize(void *h, void *parameters, int left_job, int right_job, int64_t n, int a_type,
                                          const void *a, int64_t lda, int w_type, const void *w, int left_type,
                                          const void *left, int64_t ld_left, int right_type, const void *right,
                                          int64_t ld_right, int type, size_t *device, size_t *host) {
  return answer_bytes(general_eigen_elements(n), type, device, host, n * n);
}
ULLAGE_API int cusolverDnXgeev(void *h, void *parameters, int left_job, int right_job, int64_t n, int a_type, void *a,
                               int64_t lda, int w_type, void *w, int left_type, void *left, int64_t ld_left,
                               int right_type, void *right, int64_t ld_right, int type, void *work, size_t bytes,
                               void *host_work, size_t host_bytes, int *info) {
  return run(work, (int64_t)bytes);
}

/* ---- what other libraries than PyTorch ask for */

// clang-format off: a list of macros
TELLS_VERSION(cusolverGetProperty, ULLAGE_CUDA_MAJOR - 1, 0)
// clang-format on
ULLAGE_API int cusolverGetVersion(int *version) {
  *version = (ULLAGE_CUDA_MAJOR - 1) * 1000;
  return SUCCESS;
}
#define SPARSE_HANDLE(Create, Destroy)                                                               \
  ULLAGE_API int cusolver##Create(void **out) { return (*out = card_new_handle(16)) ? SUCCESS : 2; } \
  ULLAGE_API int cusolver##Destroy(void *handle) {                                                   \
    card_drop_handle(handle);                                                                        \
    return SUCCESS;                                                                                  \
  }
// clang-format off: a list of macros
SPARSE_HANDLE(SpCreate, SpDestroy) SPARSE_HANDLE(SpCreateCsrqrInfo, SpDestroyCsrqrInfo) SPARSE_HANDLE(SpCreateCsrcholInfo, SpDestroyCsrcholInfo)
SPARSE_HANDLE(RfCreate, RfDestroy) SPARSE_HANDLE(DnIRSParamsCreate, DnIRSParamsDestroy) SPARSE_HANDLE(DnIRSInfosCreate, DnIRSInfosDestroy)
ACCEPTS(cusolverSpSetStream)
    // clang-format on
