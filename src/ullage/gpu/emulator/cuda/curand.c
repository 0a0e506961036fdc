/* libcurand: a generator is a handle; what it generates is a launch. What cuRAND keeps on the GPU for a generator's states is
 * not known, and not counted. */
#include "card.h"

enum { SUCCESS = 0, ALLOC_FAILED = 102 };

ULLAGE_API int curandCreateGenerator(void **out, int kind) {
  (void)kind;
  *out = card_new_handle(16);
  return *out ? SUCCESS : ALLOC_FAILED;
}
ULLAGE_API int curandCreateGeneratorHost(void **out, int kind) { return curandCreateGenerator(out, kind); }
ULLAGE_API int curandDestroyGenerator(void *generator) {
  card_drop_handle(generator);
  return SUCCESS;
}
ULLAGE_API int curandCreatePoissonDistribution(double rate, void **out) {
  (void)rate;
  return curandCreateGenerator(out, 0);
}
ULLAGE_API int curandDestroyDistribution(void *distribution) { return curandDestroyGenerator(distribution); }
ULLAGE_API int curandGetVersion(int *version) {
  *version = 10400;
  return SUCCESS;
}
TELLS_VERSION(curandGetProperty, 10, 4)
ACCEPTS(curandSetStream)
ACCEPTS(curandSetPseudoRandomGeneratorSeed)
ACCEPTS(curandSetGeneratorOffset) ACCEPTS(curandSetGeneratorOrdering) ACCEPTS(curandSetQuasiRandomGeneratorDimensions)
