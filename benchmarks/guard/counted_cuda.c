/* Stands before the emulated libcudart, counts the calls that make the host wait or ask for memory, and passes them on.
 *
 * Loaded into a process before the emulated libraries are, so that torch finds these functions first.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#define API __attribute__((visibility("default")))

enum call { SYNCHRONIZE, READ, MALLOC, FREE, LAUNCHED, CALLS };
static atomic_long made[CALLS];

API long calls_made(int call) { return call >= 0 && call < CALLS ? atomic_load(&made[call]) : -1; }

static void *real(void **place, const char *name) {
  if (!*place) {
    void *library = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) library = dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
    *place = dlsym(library, name);
  }
  return *place;
}

#define PASSED_ON(name, parameters, arguments, counts)           \
  API int name parameters {                                      \
    static void *place;                                          \
    counts;                                                      \
    return ((int(*) parameters)real(&place, #name)) arguments;   \
  }

struct grid {
  unsigned x, y, z;
};
static const int FROM_CARD = 2; /* cudaMemcpyDeviceToHost */

PASSED_ON(cudaDeviceSynchronize, (void), (), made[SYNCHRONIZE]++)
PASSED_ON(cudaStreamSynchronize, (void *stream), (stream), made[SYNCHRONIZE]++)
PASSED_ON(cudaEventSynchronize, (void *event), (event), made[SYNCHRONIZE]++)
PASSED_ON(cudaMemcpy, (void *to, const void *from, size_t size, int kind), (to, from, size, kind),
          made[SYNCHRONIZE]++; made[READ] += kind == FROM_CARD)
PASSED_ON(cudaMemcpyAsync, (void *to, const void *from, size_t size, int kind, void *stream), (to, from, size, kind, stream),
          made[READ] += kind == FROM_CARD)
PASSED_ON(cudaMalloc, (void **address, size_t size), (address, size), made[MALLOC]++)
PASSED_ON(cudaFree, (void *address), (address), made[FREE] += address != 0)
#define LAUNCH(name)                                                                                               \
  PASSED_ON(name, (const void *function, struct grid blocks, struct grid threads, void **with, size_t shared, void *stream), \
            (function, blocks, threads, with, shared, stream), made[LAUNCHED]++)
LAUNCH(cudaLaunchKernel) LAUNCH(__cudaLaunchKernel)
