/* libcudnn: handles, versions, tensor descriptors, and every operation that is not a graph (backend.c) or an
 * RNN (rnn.c): the convolutions of cuDNN 7's interface, batch normalisation, dropout, pooling, CTC, spatial
 * transformer. Operations are launches. Which algorithm a GPU would choose, and its workspace, is not known here:
 * every convolution has one algorithm, whose workspace is the GPU's setting. */
#include "cudnn.h"

#include <stdio.h>
#include <string.h>

#include "../../../tracing/journal/journal.h"

/* Signatures are cuDNN's; most arguments say what to compute, and nothing is computed. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- shared with the other files */

int64_t cudnn_bits_of(int type) {
  static const int bits[] = {32, 64, 16, 8, 32, 8, 8, 8, 8, 16, 64, 8, 8, 8, 8, 8, 4, 4, 4, 32, 64, 128};
  return type >= 0 && type < (int)(sizeof bits / sizeof *bits) ? bits[type] : 32;
}

int64_t cudnn_tensor_bytes(const struct cudnn_tensor *tensor) {
  if (!tensor || tensor->dims == 0) return 0;
  int64_t count = 1;
  for (int i = 0; i < tensor->dims; i++) count *= tensor->size[i];
  return (count * cudnn_bits_of(tensor->type) + 7) / 8;
}

int64_t cudnn_given_workspace_bytes(void) {
  const struct card *card = card_get(card_current());
  return card ? card->figure[CARD_CUDNN_WORKSPACE_BYTES] : 0;
}

void cudnn_report_workspace(const void *address, size_t size) {
  if (address && size) journal_workspace(address, size, card_current());
}

/* ---- versions and errors */

ULLAGE_API size_t cudnnGetVersion(void) { return (size_t)card_cudnn_version(); }
ULLAGE_API size_t cudnnGetCudartVersion(void) { return (size_t)card_cuda_version(); }

ULLAGE_API int cudnnGetProperty(int property, int *value) {
  enum { MAJOR, MINOR, PATCH };
  int version = card_cudnn_version();
  switch (property) {
    case MAJOR: *value = version / 10000; return CUDNN_SUCCESS;
    case MINOR: *value = version / 100 % 100; return CUDNN_SUCCESS;
    case PATCH: *value = version % 100; return CUDNN_SUCCESS;
    default: return CUDNN_BAD_PARAM;
  }
}

ULLAGE_API const char *cudnnGetErrorString(int status) {
  switch (status) {
    case CUDNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_BAD_TYPE: return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case CUDNN_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_ALLOC_FAILED: return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}

ULLAGE_API void cudnnGetLastErrorString(char *message, size_t size) {
  if (message && size) snprintf(message, size, "emulated cuDNN: no more is known of the error");
}

/* ---- handles */

struct handle {
  void *stream;
};
ULLAGE_API int cudnnCreate(struct handle **out) {
  *out = card_new_handle(sizeof **out);
  return *out ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
}
ULLAGE_API int cudnnDestroy(struct handle *handle) {
  card_drop_handle(handle);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnSetStream(struct handle *handle, void *stream) {
  handle->stream = stream;
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnGetStream(struct handle *handle, void **stream) {
  *stream = handle->stream;
  return CUDNN_SUCCESS;
}

/* ---- tensors and filters */

// clang-format off: a list of macros
DESCRIPTOR(Tensor, struct cudnn_tensor)
DESCRIPTOR(Filter, struct cudnn_tensor)
// clang-format on

static int set_tensor(struct cudnn_tensor *out, int type, int format, int dims, const int *size, const int *stride) {
  if (!out || dims < 0 || dims > CUDNN_MAX_DIMS) return CUDNN_BAD_PARAM;
  *out = (struct cudnn_tensor){.type = type, .format = format, .dims = dims};
  memcpy(out->size, size, (size_t)dims * sizeof *size);
  if (stride) memcpy(out->stride, stride, (size_t)dims * sizeof *stride);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnSetTensorNdDescriptor(struct cudnn_tensor *out, int type, int dims, const int *size,
                                          const int *stride) {
  return set_tensor(out, type, 0, dims, size, stride);
}
ULLAGE_API int cudnnSetFilterNdDescriptor(struct cudnn_tensor *out, int type, int format, int dims, const int *size) {
  return set_tensor(out, type, format, dims, size, NULL);
}
ULLAGE_API int cudnnGetTensorNdDescriptor(const struct cudnn_tensor *tensor, int room, int *type, int *dims, int *size,
                                          int *stride) {
  *type = tensor->type;
  *dims = tensor->dims;
  for (int i = 0; i < room && i < tensor->dims; i++) size[i] = tensor->size[i], stride[i] = tensor->stride[i];
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnGetFilterNdDescriptor(const struct cudnn_tensor *filter, int room, int *type, int *format,
                                          int *dims, int *size) {
  *type = filter->type;
  *format = filter->format;
  *dims = filter->dims;
  for (int i = 0; i < room && i < filter->dims; i++) size[i] = filter->size[i];
  return CUDNN_SUCCESS;
}

/* ---- descriptors whose content is never read back */

struct empty {
  int nothing;
};
// clang-format off: a list of macros
DESCRIPTOR(Activation, struct empty)
DESCRIPTOR(Convolution, struct empty)
DESCRIPTOR(Pooling, struct empty)
DESCRIPTOR(SpatialTransformer, struct empty)
ACCEPTS(cudnnSetActivationDescriptor)
ACCEPTS(cudnnSetConvolutionNdDescriptor) ACCEPTS(cudnnSetConvolutionGroupCount) ACCEPTS(cudnnSetConvolutionMathType)
ACCEPTS(cudnnSetPooling2dDescriptor) ACCEPTS(cudnnSetSpatialTransformerNdDescriptor)
LAUNCHES(cudnnPoolingForward)
LAUNCHES(cudnnSpatialTfGridGeneratorForward) LAUNCHES(cudnnSpatialTfGridGeneratorBackward)
LAUNCHES(cudnnSpatialTfSamplerForward) LAUNCHES(cudnnSpatialTfSamplerBackward)
    // clang-format on

    /* ---- convolutions (cuDNN 7's interface, which asks with a handle and so cannot be asked of a described GPU; PyTorch
 * uses it where TORCH_CUDNN_V8_API_DISABLED is set, and to quantize) */

    struct algorithm {
  int algorithm, status;
  float milliseconds;
  size_t workspace;
  int determinism, math_type, reserved[3];
};
_Static_assert(sizeof(struct algorithm) == 48, "cudnnConvolution*AlgoPerf_t");

static size_t workspace_bytes(void) {
  int64_t given = cudnn_given_workspace_bytes();
  return given > 0 ? (size_t)given : 0;
}

static int one_algorithm(int wanted, int *found, struct algorithm *out) {
  enum { COMMONEST = 1, DETERMINISTIC = 1 }; /* an algorithm that forward and both backward directions have */
  if (wanted < 1) return CUDNN_BAD_PARAM;
  *found = 1;
  *out = (struct algorithm){.algorithm = COMMONEST, .workspace = workspace_bytes(), .determinism = DETERMINISTIC};
  return CUDNN_SUCCESS;
}

static int convolve(const struct cudnn_tensor *x, const struct cudnn_tensor *y, const struct cudnn_tensor *z,
                    const void *workspace, size_t size) {
  cudnn_report_workspace(workspace, size);
  int64_t bytes = cudnn_tensor_bytes(x) + cudnn_tensor_bytes(y) + cudnn_tensor_bytes(z),
          given = (int64_t)workspace_bytes();
  int source = cudnn_given_workspace_bytes() < 0 ? PLAN_UNKNOWN : PLAN_GIVEN;
  card_note_plan(&(struct cudnn_plan){source, (uint64_t)bytes, bytes, given, given,
                                      given}); /* by their bytes: one problem or two */
  card_launch(NULL);
  return CUDNN_SUCCESS;
}

#define CONVOLUTION(Name)                                                                                              \
  ULLAGE_API int cudnnGetConvolution##Name##Algorithm_v7(void *handle, const void *x, const void *y,                   \
                                                         const void *convolution, const void *z, int wanted,           \
                                                         int *found, struct algorithm *out) {                          \
    return one_algorithm(wanted, found, out);                                                                          \
  }                                                                                                                    \
  ULLAGE_API int cudnnFindConvolution##Name##AlgorithmEx(                                                              \
      void *handle, const struct cudnn_tensor *x, const void *x_data, const struct cudnn_tensor *y,                    \
      const void *y_data, const void *convolution, const struct cudnn_tensor *z, void *z_data, int wanted, int *found, \
      struct algorithm *out, void *workspace, size_t size) {                                                           \
    convolve(x, y, z, workspace, size);                                                                                \
    return one_algorithm(wanted, found, out);                                                                          \
  }                                                                                                                    \
  ULLAGE_API int cudnnGetConvolution##Name##WorkspaceSize(void *handle, const void *x, const void *y,                  \
                                                          const void *convolution, const void *z, int algorithm,       \
                                                          size_t *size) {                                              \
    *size = workspace_bytes();                                                                                         \
    return CUDNN_SUCCESS;                                                                                              \
  }                                                                                                                    \
  ULLAGE_API int cudnnConvolution##Name(void *handle, const void *alpha, const struct cudnn_tensor *x,                 \
                                        const void *x_data, const struct cudnn_tensor *y, const void *y_data,          \
                                        const void *convolution, int algorithm, void *workspace, size_t size,          \
                                        const void *beta, const struct cudnn_tensor *z, void *z_data) {                \
    return convolve(x, y, z, workspace, size);                                                                         \
  }
// clang-format off: a list of macros
CONVOLUTION(Forward) CONVOLUTION(BackwardData) CONVOLUTION(BackwardFilter)
    // clang-format on

    ULLAGE_API
    int cudnnConvolutionBiasActivationForward(void *handle, const void *alpha, const struct cudnn_tensor *x,
                                              const void *x_data, const struct cudnn_tensor *w, const void *w_data,
                                              const void *convolution, int algorithm, void *workspace, size_t size,
                                              const void *alpha2, const void *z, const void *z_data, const void *bias,
                                              const void *bias_data, const void *activation,
                                              const struct cudnn_tensor *y, void *y_data) {
  return convolve(x, w, y, workspace, size);
}

/* ---- batch normalisation: no workspace and no reserve space is requested. cuDNN's documents name both for one case
 * only, half precision in channels last with the persistent mode; elsewhere the newer functions do what the older ones
 * did, which took neither. In that case the most is assumed to be a bit for each element from forward to backward, the
 * sign that a fused activation needs (PyTorch fuses none), and of workspace two sums in fp32 for each channel and
 * multiprocessor. */

static bool is_persistent(int mode, const struct cudnn_tensor *x) {
  enum { SPATIAL_PERSISTENT = 2 };
  return mode == SPATIAL_PERSISTENT && x && x->dims >= 4 && x->stride[1] == 1 && cudnn_bits_of(x->type) == 16;
}
static void note_sums(int mode, const struct cudnn_tensor *x) {
  const struct card *card = card_get(card_current());
  if (!card || !is_persistent(mode, x)) return;
  int64_t most = 2 * (int64_t)sizeof(float) * x->size[1] * card->figure[CARD_SM_COUNT];
  card_note_guess(GUESS_BATCH_NORM, &(struct guess){0, 0, most});
}

ULLAGE_API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations,
                                                                        const struct cudnn_tensor *x, const void *z,
                                                                        const void *y, const void *scale,
                                                                        const void *activation, size_t *size) {
  note_sums(mode, x);
  *size = 0;
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations,
                                                                 const struct cudnn_tensor *x, const void *y,
                                                                 const void *dy, const void *dz, const void *dx,
                                                                 const void *scale, const void *activation,
                                                                 size_t *size) {
  note_sums(mode, x);
  *size = 0;
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                                    const void *activation, const void *x,
                                                                    size_t *size) {
  *size = 0;
  return CUDNN_SUCCESS;
}
// clang-format off: a list of macros
LAUNCHES(cudnnBatchNormalizationForwardInference)
// clang-format on

/* The input lives until the backward, as a reserve space would. */
ULLAGE_API int cudnnBatchNormalizationForwardTrainingEx(void *handle, int mode, int operations, const void *alpha,
                                                        const void *beta, const struct cudnn_tensor *x,
                                                        const void *x_data) {
  int64_t bytes = cudnn_tensor_bytes(x);
  if (is_persistent(mode, x)) card_keep_guess(GUESS_BATCH_NORM, x_data, bytes, &(struct guess){0, 0, bytes / 16});
  card_launch(NULL);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnBatchNormalizationBackwardEx(void *handle, int mode, int operations, const void *alpha_data,
                                                 const void *beta_data, const void *alpha_parameter,
                                                 const void *beta_parameter, const void *x, const void *x_data) {
  card_let_guess_go(GUESS_BATCH_NORM, x_data);
  card_launch(NULL);
  return CUDNN_SUCCESS;
}

/* ---- dropout */

// clang-format off: a list of macros
DESCRIPTOR(Dropout, struct empty)
// clang-format on

/* A guess: the six words of an XORWOW generator for every thread that the GPU can hold at once. All that was found
 * published is "a few MB" (awslabs/raf, pull request 39). The least is nothing (a generator that counts has no state), the
 * most 48 bytes for each thread, which is what cuRAND's own XORWOW state takes. */
ULLAGE_API int cudnnDropoutGetStatesSize(void *handle, size_t *size) {
  const struct card *card = card_get(card_current());
  int64_t threads = card ? card->figure[CARD_SM_COUNT] * card->figure[CARD_THREADS_PER_SM] : 0;
  card_note_guess(GUESS_DROPOUT, &(struct guess){24 * threads, 0, 48 * threads});
  *size = (size_t)(24 * threads);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnSetDropoutDescriptor(void *descriptor, void *handle, float probability, void *states, size_t size,
                                         unsigned long long seed) {
  if (states) card_launch(NULL);
  return CUDNN_SUCCESS;
}
// clang-format off: a list of macros
ACCEPTS(cudnnRestoreDropoutDescriptor)
// clang-format on

/* ---- CTC loss. Its workspace is a guess: the forward and the backward table of the recursion, one float for each
 * step, sequence and state (2 * labels + 1). Without labels on the host, the longest allowed. The least is nothing (one row of
 * each table fits into shared memory), the most three tables, the probabilities of each state in addition, in double
 * precision: both are assumptions. */

struct ctc {
  int longest_label;
};
// clang-format off: a list of macros
DESCRIPTOR(CTCLoss, struct ctc)
ACCEPTS(cudnnSetCTCLossDescriptorEx)
// clang-format on

ULLAGE_API int cudnnSetCTCLossDescriptor_v9(struct ctc *ctc, int type, int normalization, int gradient_mode,
                                            int longest_label) {
  ctc->longest_label = longest_label;
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnSetCTCLossDescriptor_v8(struct ctc *ctc, int type, int normalization, int propagate_nan,
                                            int longest_label) {
  return cudnnSetCTCLossDescriptor_v9(ctc, type, normalization, propagate_nan, longest_label);
}

static size_t ctc_bytes(const struct cudnn_tensor *probabilities, int longest_label) {
  int64_t steps = probabilities->size[0], sequences = probabilities->size[1];
  int64_t table = steps * sequences * (2 * (int64_t)longest_label + 1);
  struct guess guess = {2 * table * (int64_t)sizeof(float), 0, 3 * table * (int64_t)sizeof(double)};
  card_note_guess(GUESS_CTC, &guess);
  return (size_t)guess.bytes;
}
ULLAGE_API int cudnnGetCTCLossWorkspaceSize(void *handle, const struct cudnn_tensor *probabilities,
                                            const void *gradients, const int *labels, const int *label_lengths,
                                            const int *input_lengths, int algorithm, struct ctc *ctc, size_t *size) {
  int longest = 0;
  for (int i = 0; i < probabilities->size[1]; i++)
    if (label_lengths[i] > longest) longest = label_lengths[i];
  *size = ctc_bytes(probabilities, longest);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, struct ctc *ctc,
                                               const struct cudnn_tensor *probabilities, const void *gradients,
                                               size_t *size) {
  *size = ctc_bytes(probabilities, ctc->longest_label);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnCTCLoss(void *handle, const void *probabilities, const void *data, const int *labels,
                            const int *label_lengths, const int *input_lengths, void *costs, const void *gradients,
                            void *gradients_data, int algorithm, struct ctc *ctc, void *workspace, size_t size) {
  cudnn_report_workspace(workspace, size);
  card_launch(NULL);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnCTCLoss_v8(void *handle, int algorithm, struct ctc *ctc, const void *probabilities,
                               const void *data, const int *labels, const int *label_lengths, const int *input_lengths,
                               void *costs, const void *gradients, void *gradients_data, size_t size, void *workspace) {
  cudnn_report_workspace(workspace, size);
  card_launch(NULL);
  return CUDNN_SUCCESS;
}
