/* libcudnn: recurrent networks. The weight space is described exactly: every matrix and bias has its place. The
 * workspace and the reserve space of a real GPU are not known: `cudnnGetRNNTempSpaceSizes` says what they are
 * guessed from. */
#include "cudnn.h"

#include <string.h>

/* Signatures are cuDNN's; most arguments say what to compute, and nothing is computed. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { CELL_RELU, CELL_TANH, CELL_LSTM, CELL_GRU };
enum { BIAS_NONE, BIAS_INPUT, BIAS_BOTH, BIAS_RECURRENT };
enum { INPUT_LINEAR, INPUT_SKIP };
enum { LAYOUT_PACKED = 1 };

struct rnn {
  int cell, bias, directions, input_mode, type;
  int64_t input, hidden, projected, layers;
};
struct rnn_data {
  int64_t batch, longest, steps; /* steps: of all sequences together, padding included unless packed */
};
DESCRIPTOR(RNN, struct rnn)
DESCRIPTOR(RNNData, struct rnn_data)

ULLAGE_API int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int algorithm, int cell, int bias, int bidirectional,
                                        int input_mode, int type, int math_type, int math_mode, int32_t input,
                                        int32_t hidden, int32_t projected, int32_t layers, void *dropout,
                                        uint32_t flags) {
  if (cell < CELL_RELU || cell > CELL_GRU || bias < BIAS_NONE || bias > BIAS_RECURRENT) return CUDNN_BAD_PARAM;
  *rnn = (struct rnn){cell, bias, bidirectional ? 2 : 1, input_mode, type, input, hidden, projected, layers};
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnSetRNNDataDescriptor(struct rnn_data *data, int type, int layout, int longest, int batch,
                                         int vector, const int *lengths, void *padding) {
  *data = (struct rnn_data){batch, longest, (int64_t)longest * batch};
  if (layout == LAYOUT_PACKED) {
    data->steps = 0;
    for (int i = 0; i < batch; i++) data->steps += lengths[i];
  }
  return CUDNN_SUCCESS;
}

/* ---- the weight space: first the matrices of every layer and direction (one for each gate that multiplies the
 * input, one for each gate that multiplies the hidden state, the projection of an LSTM), then all biases in the same
 * order. In PyTorch's own tensors the gates of a layer lie side by side, and it checks that here they do as well. */

static int64_t gates(const struct rnn *rnn) { return rnn->cell == CELL_LSTM ? 4 : rnn->cell == CELL_GRU ? 3 : 1; }

static int64_t layer_input(const struct rnn *rnn, int64_t layer) {
  if (layer > 0) return rnn->projected * rnn->directions;
  return rnn->input_mode == INPUT_SKIP ? 0 : rnn->input;
}
static int64_t layer_matrices(const struct rnn *rnn, int64_t layer) { /* elements, one direction */
  int64_t projection = rnn->projected == rnn->hidden ? 0 : rnn->projected * rnn->hidden;
  return gates(rnn) * rnn->hidden * (layer_input(rnn, layer) + rnn->projected) + projection;
}
static int64_t layer_biases(const struct rnn *rnn) {
  static const int sets[] = {[BIAS_NONE] = 0, [BIAS_INPUT] = 1, [BIAS_BOTH] = 2, [BIAS_RECURRENT] = 1};
  return sets[rnn->bias] * gates(rnn) * rnn->hidden;
}
static int64_t all_matrices(const struct rnn *rnn) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < rnn->layers; layer++) count += rnn->directions * layer_matrices(rnn, layer);
  return count;
}
static int64_t element_bytes(const struct rnn *rnn) { return cudnn_bits_of(rnn->type) / 8; }

ULLAGE_API int cudnnGetRNNWeightSpaceSize(void *handle, const struct rnn *rnn, size_t *size) {
  *size = (size_t)((all_matrices(rnn) + rnn->layers * rnn->directions * layer_biases(rnn)) * element_bytes(rnn));
  return CUDNN_SUCCESS;
}

/* Fills in a descriptor of `rows` x `columns`, both 0: there is none. */
static void describe(struct cudnn_tensor *out, void **address, const struct rnn *rnn, const char *space, int64_t offset,
                     int64_t rows, int64_t columns) {
  bool exists = rows > 0 && columns > 0;
  if (out) {
    *out = (struct cudnn_tensor){.type = rnn->type, .dims = exists ? 3 : 0};
    if (exists) {
      const int64_t size[3] = {1, rows, columns}, stride[3] = {rows * columns, columns, 1};
      for (int i = 0; i < 3; i++) out->size[i] = (int)size[i], out->stride[i] = (int)stride[i];
    }
  }
  if (address) *address = exists ? (void *)(space + offset * element_bytes(rnn)) : NULL;
}

ULLAGE_API int cudnnGetRNNWeightParams(void *handle, const struct rnn *rnn, int32_t pseudo_layer, size_t size,
                                       const void *space, int32_t id, struct cudnn_tensor *matrix,
                                       void **matrix_address, struct cudnn_tensor *bias, void **bias_address) {
  int64_t g = gates(rnn), layer = pseudo_layer / rnn->directions, input = layer_input(rnn, layer);
  if (pseudo_layer < 0 || layer >= rnn->layers || id < 0 || id > 2 * g) return CUDNN_BAD_PARAM;

  int64_t offset = 0, rows = rnn->hidden, columns = 0;
  for (int64_t before = 0; before < pseudo_layer; before++) offset += layer_matrices(rnn, before / rnn->directions);
  if (id < g) {
    offset += id * rnn->hidden * input;
    columns = input;
  } else if (id < 2 * g) {
    offset += g * rnn->hidden * input + (id - g) * rnn->hidden * rnn->projected;
    columns = rnn->projected;
  } else if (rnn->projected != rnn->hidden) {
    offset += g * rnn->hidden * (input + rnn->projected);
    rows = rnn->projected;
    columns = rnn->hidden;
  }
  describe(matrix, matrix_address, rnn, space, offset, rows, columns);

  int64_t first = rnn->bias == BIAS_RECURRENT ? g : 0; /* the first id that has a bias */
  bool has_bias = id >= first && (id - first) * rnn->hidden < layer_biases(rnn);
  offset = all_matrices(rnn) + pseudo_layer * layer_biases(rnn) + (id - first) * rnn->hidden;
  describe(bias, bias_address, rnn, space, offset, rnn->hidden, has_bias);
  return CUDNN_SUCCESS;
}

/* ---- workspace and reserve space: a guess, in elements of the data's type.
 *
 * reserve, for each step of each sequence: 5 (LSTM: gates and cell), 6 (GRU) or 1 hidden vectors for each layer and
 * direction, and the output of every layer but the last. The one published size whose shapes are known is met to the
 * byte (deepspeech.pytorch issue 172: bidirectional GRU), and the ratio of two others is (pytorch issue 2895: LSTM and
 * GRU, 4 layers). All are of 2017, fp32, the standard algorithm.
 * workspace: a copy of the matrices, both directions' outputs of one layer if there are two, and 11 hidden vectors for
 * each gate, sequence, layer and direction. Within 2 % of the same three, if issue 2895 had a batch of 25.
 * Without training there is no reserve space, so the workspace also holds what one layer would have reserved.
 *
 * How far that may be off is an assumption, for want of records of real cards. The least: the outputs of the layers
 * between are kept, for a backward cannot make them again without running all steps again, and nothing else is. The
 * most: hidden vectors kept before and after their gates' functions, in fp32 whatever the type, and a byte of dropout
 * mask for each output between; of workspace three times the guess, in fp32 (the matrices transposed, and their
 * gradients). */
static int64_t widened(const struct rnn *rnn) { /* bytes of an element, where sums are made in fp32 */
  return element_bytes(rnn) < 4 ? 4 : element_bytes(rnn);
}
static int64_t kept_vectors(const struct rnn *rnn) {
  return rnn->cell == CELL_LSTM ? 5 : rnn->cell == CELL_GRU ? 6 : 1;
}

static struct guess reserve_of(const struct rnn *rnn, const struct rnn_data *data) {
  int64_t elements = data->steps * rnn->hidden * rnn->directions, kept = kept_vectors(rnn) * rnn->layers,
          between = rnn->layers - 1;
  return (struct guess){
      .bytes = elements * (kept + between) * element_bytes(rnn),
      .low = elements * between * element_bytes(rnn),
      .high = elements * (2 * kept * widened(rnn) + between * (element_bytes(rnn) + 1)),
  };
}
static struct guess workspace_of(const struct rnn *rnn, int training, const struct rnn_data *data) {
  int64_t step = rnn->hidden * rnn->directions;
  int64_t elements = all_matrices(rnn) + 11 * gates(rnn) * data->batch * step * rnn->layers;
  if (rnn->directions == 2) elements += 2 * data->steps * step;
  if (!training) elements += data->steps * step * kept_vectors(rnn);
  return (struct guess){.bytes = elements * element_bytes(rnn), .low = 0, .high = 3 * elements * widened(rnn)};
}
ULLAGE_API int cudnnGetRNNTempSpaceSizes(void *handle, const struct rnn *rnn, int training, const struct rnn_data *data,
                                         size_t *workspace, size_t *reserve) {
  struct guess work = workspace_of(rnn, training, data);
  if (workspace) {
    *workspace = (size_t)work.bytes;
    card_note_guess(GUESS_RNN, &work);
  }
  struct guess kept = reserve_of(rnn, data);
  if (reserve) *reserve = training ? (size_t)kept.bytes : 0;
  if (reserve && training) card_expect_guess(GUESS_RNN, &kept);
  return CUDNN_SUCCESS;
}

/* ---- running: a launch with a workspace */

static int run(const void *workspace, size_t size) {
  cudnn_report_workspace(workspace, size);
  card_launch(NULL);
  return CUDNN_SUCCESS;
}
ULLAGE_API int cudnnRNNForward(void *handle, const struct rnn *rnn, int training, const int32_t *lengths,
                               const struct rnn_data *x, const void *x_data, const void *y, void *y_data, const void *h,
                               const void *hx, void *hy, const void *c, const void *cx, void *cy, size_t weight_size,
                               const void *weights, size_t size, void *workspace, size_t reserve_size, void *reserve) {
  struct guess kept = reserve_of(rnn, x);
  if (training) card_keep_guess(GUESS_RNN, reserve, (int64_t)reserve_size, &kept);
  return run(workspace, size);
}
ULLAGE_API int cudnnRNNBackwardData_v8(void *handle, const struct rnn *rnn, const int32_t *lengths, const void *y,
                                       const void *y_data, const void *dy, const void *x, void *dx, const void *h,
                                       const void *hx, const void *dhy, void *dhx, const void *c, const void *cx,
                                       const void *dcy, void *dcx, size_t weight_size, const void *weights, size_t size,
                                       void *workspace, size_t reserve_size, void *reserve) {
  card_let_guess_go(GUESS_RNN, reserve);
  return run(workspace, size);
}
ULLAGE_API int cudnnRNNBackwardWeights_v8(void *handle, const struct rnn *rnn, int add, const int32_t *lengths,
                                          const void *x, const void *x_data, const void *h, const void *hx,
                                          const void *y, const void *y_data, size_t weight_size, void *dweights,
                                          size_t size, void *workspace, size_t reserve_size, void *reserve) {
  return run(workspace, size);
}
