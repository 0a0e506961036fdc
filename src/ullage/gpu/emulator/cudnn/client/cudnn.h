/* What the files of libcudnn share: status codes, the size of a type, and the descriptor of a tensor or filter. */
#ifndef ULLAGE_CUDNN_H
#define ULLAGE_CUDNN_H

#include "../../cuda/card.h"

enum {
  CUDNN_SUCCESS = 0,
  CUDNN_BAD_PARAM = 2000,
  CUDNN_NULL_POINTER = 2002,
  CUDNN_BAD_TYPE = 2010,
  CUDNN_NOT_SUPPORTED = 3000,
  CUDNN_ALLOC_FAILED = 4003,
};

enum { CUDNN_MAX_DIMS = 8 };

/* Tensor and filter descriptors alike. A filter has a format instead of strides. */
struct cudnn_tensor {
  int type, format, dims;
  int size[CUDNN_MAX_DIMS], stride[CUDNN_MAX_DIMS];
};

int64_t cudnn_bits_of(int type); /* of one element of a cudnnDataType_t */
int64_t cudnn_tensor_bytes(const struct cudnn_tensor *tensor);
int64_t cudnn_given_workspace_bytes(void); /* the current GPU's setting, what every plan asks for; -1: none was given */
void cudnn_report_workspace(const void *address, size_t size);

/* cudnnCreate*Descriptor and cudnnDestroy*Descriptor. */
#define DESCRIPTOR(Name, structure)                                      \
  ULLAGE_API int cudnnCreate##Name##Descriptor(structure **out) {        \
    *out = card_new_handle(sizeof **out);                                \
    return *out ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;                    \
  }                                                                      \
  ULLAGE_API int cudnnDestroy##Name##Descriptor(structure *descriptor) { \
    card_drop_handle(descriptor);                                        \
    return CUDNN_SUCCESS;                                                \
  }

#endif
