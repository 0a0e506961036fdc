/* libcupti: PyTorch's profiler may subscribe; no record ever comes. */
#include "card.h"

enum { SUCCESS = 0, MAX_LIMIT_REACHED = 12 };

ULLAGE_API int cuptiGetVersion(uint32_t *version) {
  *version = ULLAGE_CUDA_MAJOR >= 13 ? 130000 : 26;
  return SUCCESS;
}
ULLAGE_API int cuptiGetResultString(int status, const char **text) {
  *text = status == SUCCESS ? "CUPTI_SUCCESS" : "CUPTI_ERROR";
  return SUCCESS;
}
ULLAGE_API int cuptiSubscribe(void **subscriber, void *callback, void *data) {
  static char one;
  (void)callback, (void)data;
  *subscriber = &one;
  return SUCCESS;
}
ULLAGE_API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t size, void **record) {
  (void)buffer, (void)size;
  *record = NULL;
  return MAX_LIMIT_REACHED;
}
ULLAGE_API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
  (void)context, (void)stream;
  *dropped = 0;
  return SUCCESS;
}
ULLAGE_API int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
  (void)kind;
  if (last) *last = 0;
  return SUCCESS;
}
// clang-format off: a list of macros
ACCEPTS(cuptiUnsubscribe) ACCEPTS(cuptiEnableCallback) ACCEPTS(cuptiEnableDomain) ACCEPTS(cuptiFinalize)
ACCEPTS(cuptiActivityEnable) ACCEPTS(cuptiActivityDisable) ACCEPTS(cuptiActivityFlushAll) ACCEPTS(cuptiActivityRegisterCallbacks)
ACCEPTS(cuptiActivityRegisterTimestampCallback) ACCEPTS(cuptiActivitySetAttribute) ACCEPTS(cuptiActivityPushExternalCorrelationId)
ACCEPTS(cuptiActivityEnableCudaEventDeviceTimestamps) ACCEPTS(cuptiActivityEnableDriverApi) ACCEPTS(cuptiActivityEnableRuntimeApi)
    // clang-format on
