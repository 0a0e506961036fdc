/* libnvrtc: nothing is compiled. A program is a text in PTX that has an entry for each `__global__` function found in its source,
 * under its name in the source (a C++ name is not mangled), and one for each requested name. For such an image the
 * driver returns every requested function. A source with errors compiles too. */
#include "card.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, NOT_FOUND = 10 };
struct program {
  char *image;
  size_t size; /* without the zero at the end */
  struct name *names;
};
struct name {
  struct name *next;
  char text[];
};

ULLAGE_API int nvrtcVersion(int *major, int *minor) {
  *major = card_cuda_version() / 1000;
  *minor = card_cuda_version() % 1000 / 10;
  return SUCCESS;
}
ULLAGE_API const char *nvrtcGetErrorString(int status) { return status ? "NVRTC_ERROR" : "NVRTC_SUCCESS"; }

static bool append(struct program *program, const char *format, const char *name, int length) {
  size_t room = strlen(format) + (size_t)length + 1;
  char *grown = realloc(program->image, program->size + room);
  if (!grown) return false;
  program->image = grown;
  program->size += (size_t)snprintf(grown + program->size, room, format, length, name);
  return true;
}
static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The word before the first parenthesis that is not an attribute's (`__launch_bounds__(256)`). */
static const char *name_after(const char *at, int *length) {
  while ((at = strchr(at, '('))) {
    const char *end = at;
    while (isspace((unsigned char)end[-1])) end--;
    const char *start = end;
    while (is_word(start[-1])) start--;
    if (start == end) return NULL;
    if (strncmp(start, "__", 2) != 0) {
      *length = (int)(end - start);
      return start;
    }
    at++;
  }
  return NULL;
}

ULLAGE_API int nvrtcCreateProgram(struct program **out, const char *source, const char *name, int count,
                                  const char *const *headers, const char *const *includes) {
  static const char KERNEL[] = "__global__";
  (void)name, (void)count, (void)headers, (void)includes;
  *out = card_new_handle(sizeof **out);
  bool room = *out && append(*out, ".version 8.0\n.target sm_75\n.address_size 64%.*s\n", "", 0);
  for (const char *at = source; room && at && (at = strstr(at, KERNEL));) {
    int length;
    const char *found = name_after(at += sizeof KERNEL - 1, &length);
    if (found) room = append(*out, ".visible .entry %.*s() { ret; }\n", found, length);
  }
  return room ? SUCCESS : OUT_OF_MEMORY;
}
ULLAGE_API int nvrtcDestroyProgram(struct program **program) {
  for (struct name *next, *name = (*program)->names; name; name = next) {
    next = name->next;
    free(name);
  }
  free((*program)->image);
  card_drop_handle(*program);
  *program = NULL;
  return SUCCESS;
}
ULLAGE_API int nvrtcAddNameExpression(struct program *program, const char *text) {
  struct name *name = malloc(sizeof *name + strlen(text) + 1);
  if (!name) return OUT_OF_MEMORY;
  strcpy(name->text, text);
  name->next = program->names;
  program->names = name;
  return SUCCESS;
}
ULLAGE_API int nvrtcGetLoweredName(struct program *program, const char *text, const char **lowered) {
  for (struct name *name = program->names; name; name = name->next) {
    if (strcmp(name->text, text) != 0) continue;
    *lowered = name->text;
    return SUCCESS;
  }
  return NOT_FOUND;
}
ACCEPTS(nvrtcCompileProgram)

#define OUTPUT(Name)                                                           \
  ULLAGE_API int nvrtcGet##Name##Size(struct program *program, size_t *size) { \
    *size = program->size + 1;                                                 \
    return SUCCESS;                                                            \
  }                                                                            \
  ULLAGE_API int nvrtcGet##Name(struct program *program, char *out) {          \
    memcpy(out, program->image, program->size + 1);                            \
    return SUCCESS;                                                            \
  }
OUTPUT(PTX)
OUTPUT(CUBIN)
OUTPUT(LTOIR)
OUTPUT(OptiXIR) OUTPUT(NVVM) ULLAGE_API int nvrtcGetProgramLogSize(struct program *program, size_t *size) {
  (void)program;
  *size = 1;
  return SUCCESS;
}
ULLAGE_API int nvrtcGetProgramLog(struct program *program, char *out) {
  (void)program;
  *out = 0;
  return SUCCESS;
}
static const int architectures[] = {75, 80, 86, 87, 89, 90, 100, 103, 120};
ULLAGE_API int nvrtcGetNumSupportedArchs(int *count) {
  *count = sizeof architectures / sizeof *architectures;
  return SUCCESS;
}
ULLAGE_API int nvrtcGetSupportedArchs(int *out) {
  memcpy(out, architectures, sizeof architectures);
  return SUCCESS;
}
ACCEPTS(nvrtcSetFlowCallback)
