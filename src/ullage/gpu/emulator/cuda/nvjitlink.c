/* libnvJitLink: what is linked is not read. The result is a text in PTX without a function; for such an image the driver returns
 * every requested function. */
#include <string.h>

#include "card.h"

static const char IMAGE[] = "//\n// linked on an emulated card\n//\n.version 8.0\n.target sm_75\n.address_size 64\n";

ULLAGE_API int nvJitLinkCreate(void **out, uint32_t count, const char **options) {
  (void)count, (void)options;
  *out = card_new_handle(16);
  return *out ? 0 : 6;
}
ULLAGE_API int nvJitLinkDestroy(void **handle) {
  card_drop_handle(*handle);
  *handle = NULL;
  return 0;
}
ACCEPTS(nvJitLinkAddData)
ACCEPTS(nvJitLinkAddFile)
ACCEPTS(nvJitLinkComplete)
#define GIVES(Name, text)                                               \
  ULLAGE_API int nvJitLinkGet##Name##Size(void *handle, size_t *size) { \
    (void)handle;                                                       \
    *size = sizeof text;                                                \
    return 0;                                                           \
  }                                                                     \
  ULLAGE_API int nvJitLinkGet##Name(void *handle, char *out) {          \
    (void)handle;                                                       \
    memcpy(out, text, sizeof text);                                     \
    return 0;                                                           \
  }
GIVES(LinkedCubin, IMAGE)
GIVES(LinkedPtx, IMAGE)
GIVES(LinkedLTOIR, IMAGE)
GIVES(ErrorLog, "") GIVES(InfoLog, "") ULLAGE_API int nvJitLinkVersion(unsigned *major, unsigned *minor) {
  *major = (unsigned)card_cuda_version() / 1000;
  *minor = (unsigned)card_cuda_version() % 1000 / 10;
  return 0;
}
