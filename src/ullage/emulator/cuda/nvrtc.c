/* libnvrtc: a program compiles to nothing, and its functions keep the names that were asked for. */
#include "card.h"

#include <string.h>

struct program {
  char name[4096];
};

ULLAGE_API int nvrtcVersion(int *major, int *minor) {
  *major = card_cuda_version() / 1000;
  *minor = card_cuda_version() % 1000 / 10;
  return 0;
}
ULLAGE_API const char *nvrtcGetErrorString(int status) { return status ? "NVRTC_ERROR" : "NVRTC_SUCCESS"; }
ULLAGE_API int nvrtcCreateProgram(struct program **out, const char *source, const char *name, int count, const char *const *headers,
                                  const char *const *includes) {
  (void)source, (void)name, (void)count, (void)headers, (void)includes;
  *out = card_new_handle(sizeof **out);
  return *out ? 0 : 1;
}
ULLAGE_API int nvrtcDestroyProgram(struct program **program) {
  card_drop_handle(*program);
  *program = NULL;
  return 0;
}
ULLAGE_API int nvrtcAddNameExpression(struct program *program, const char *name) {
  strncpy(program->name, name, sizeof program->name - 1);
  return 0;
}
ULLAGE_API int nvrtcGetLoweredName(struct program *program, const char *name, const char **lowered) {
  (void)name;
  *lowered = program->name;
  return 0;
}
ACCEPTS(nvrtcCompileProgram)
#define OUTPUT(Name)                                                              \
  ULLAGE_API int nvrtcGet##Name##Size(struct program *program, size_t *size) {    \
    (void)program;                                                                \
    *size = 1;                                                                    \
    return 0;                                                                     \
  }                                                                               \
  ULLAGE_API int nvrtcGet##Name(struct program *program, char *out) {             \
    (void)program;                                                                \
    *out = 0;                                                                     \
    return 0;                                                                     \
  }
OUTPUT(PTX) OUTPUT(CUBIN) OUTPUT(ProgramLog)
