/* libcufft: the other ways to make a plan, all of them cufftXtMakePlanMany under simpler names, and what a plan would take. */
#include "card.h"

enum { SUCCESS = 0, INVALID_TYPE = 3 };
/* cufftType, and the cudaDataType of input and output. */
enum { REAL = 0, REAL_DOUBLE = 1, COMPLEX = 4, COMPLEX_DOUBLE = 5 };
enum { R2C = 0x2a, C2R = 0x2c, C2C = 0x29, D2Z = 0x6a, Z2D = 0x6c, Z2Z = 0x69 };

int cufftCreate(int *plan);
int cufftDestroy(int plan);
int cufftSetAutoAllocation(int plan, int allocates);
int cufftXtMakePlanMany(int plan, int rank, const long long *sizes, const long long *in_embed, long long in_stride,
                        long long in_step, int in_type, const long long *out_embed, long long out_stride,
                        long long out_step, int out_type, long long batch, size_t *bytes, int type);

static int make(int plan, int rank, const long long *sizes, int kind, long long batch, size_t *bytes) {
  bool is_double = kind == D2Z || kind == Z2D || kind == Z2Z;
  int real = is_double ? REAL_DOUBLE : REAL, complex = is_double ? COMPLEX_DOUBLE : COMPLEX;
  if (kind != R2C && kind != C2R && kind != C2C && !is_double) return INVALID_TYPE;
  int in = kind == R2C || kind == D2Z ? real : complex, out = kind == C2R || kind == Z2D ? real : complex;
  size_t unused;
  return cufftXtMakePlanMany(plan, rank, sizes, NULL, 1, 0, in, NULL, 1, 0, out, batch, bytes ? bytes : &unused,
                             complex);
}
/* What a plan would take, without making it. */
static int estimate(int rank, const long long *sizes, int kind, long long batch, size_t *bytes) {
  int plan, status = cufftCreate(&plan);
  if (status != SUCCESS) return status;
  cufftSetAutoAllocation(plan, 0);
  status = make(plan, rank, sizes, kind, batch, bytes);
  cufftDestroy(plan);
  return status;
}
static int create(int *plan, int rank, const long long *sizes, int kind, long long batch) {
  int status = cufftCreate(plan);
  return status == SUCCESS ? make(*plan, rank, sizes, kind, batch, NULL) : status;
}

#define SIZES1 \
  (const long long[]) { x }
#define SIZES2 \
  (const long long[]) { x, y }
#define SIZES3 \
  (const long long[]) { x, y, z }
ULLAGE_API int cufftMakePlan1d(int plan, int x, int kind, int batch, size_t *bytes) {
  return make(plan, 1, SIZES1, kind, batch, bytes);
}
ULLAGE_API int cufftMakePlan2d(int plan, int x, int y, int kind, size_t *bytes) {
  return make(plan, 2, SIZES2, kind, 1, bytes);
}
ULLAGE_API int cufftMakePlan3d(int plan, int x, int y, int z, int kind, size_t *bytes) {
  return make(plan, 3, SIZES3, kind, 1, bytes);
}
ULLAGE_API int cufftPlan1d(int *plan, int x, int kind, int batch) { return create(plan, 1, SIZES1, kind, batch); }
ULLAGE_API int cufftPlan2d(int *plan, int x, int y, int kind) { return create(plan, 2, SIZES2, kind, 1); }
ULLAGE_API int cufftPlan3d(int *plan, int x, int y, int z, int kind) { return create(plan, 3, SIZES3, kind, 1); }
ULLAGE_API int cufftEstimate1d(int x, int kind, int batch, size_t *bytes) {
  return estimate(1, SIZES1, kind, batch, bytes);
}
ULLAGE_API int cufftEstimate2d(int x, int y, int kind, size_t *bytes) { return estimate(2, SIZES2, kind, 1, bytes); }
ULLAGE_API int cufftEstimate3d(int x, int y, int z, int kind, size_t *bytes) {
  return estimate(3, SIZES3, kind, 1, bytes);
}
ULLAGE_API int cufftGetSize1d(int plan, int x, int kind, int batch, size_t *bytes) {
  (void)plan;
  return cufftEstimate1d(x, kind, batch, bytes);
}
ULLAGE_API int cufftGetSize2d(int plan, int x, int y, int kind, size_t *bytes) {
  (void)plan;
  return cufftEstimate2d(x, y, kind, bytes);
}
ULLAGE_API int cufftGetSize3d(int plan, int x, int y, int z, int kind, size_t *bytes) {
  (void)plan;
  return cufftEstimate3d(x, y, z, kind, bytes);
}

enum { MOST_DIMENSIONS = 3 };
ULLAGE_API int cufftMakePlanMany64(int plan, int rank, long long *sizes, long long *in_embed, long long in_stride,
                                   long long in_step, long long *out_embed, long long out_stride, long long out_step,
                                   int kind, long long batch, size_t *bytes) {
  (void)in_embed, (void)in_stride, (void)in_step, (void)out_embed, (void)out_stride, (void)out_step;
  return make(plan, rank, sizes, kind, batch, bytes);
}
ULLAGE_API int cufftMakePlanMany(int plan, int rank, int *sizes, int *in_embed, int in_stride, int in_step,
                                 int *out_embed, int out_stride, int out_step, int kind, int batch, size_t *bytes) {
  long long wide[MOST_DIMENSIONS];
  (void)in_embed, (void)in_stride, (void)in_step, (void)out_embed, (void)out_stride, (void)out_step;
  if (rank < 1 || rank > MOST_DIMENSIONS) return 4; /* invalid value */
  for (int i = 0; i < rank; i++) wide[i] = sizes[i];
  return make(plan, rank, wide, kind, batch, bytes);
}
ULLAGE_API int cufftPlanMany(int *plan, int rank, int *sizes, int *in_embed, int in_stride, int in_step, int *out_embed,
                             int out_stride, int out_step, int kind, int batch) {
  int status = cufftCreate(plan);
  if (status != SUCCESS) return status;
  return cufftMakePlanMany(*plan, rank, sizes, in_embed, in_stride, in_step, out_embed, out_stride, out_step, kind,
                           batch, NULL);
}
ULLAGE_API int cufftGetVersion(int *version) {
  *version = (ULLAGE_CUDA_MAJOR - 1) * 1000;
  return SUCCESS;
}
TELLS_VERSION(cufftGetProperty, ULLAGE_CUDA_MAJOR - 1, 0)
ACCEPTS(cufftXtSetWorkAreaPolicy) ACCEPTS(cufftSetPlanPropertyInt64) ACCEPTS(cufftResetPlanProperty)
