/* libcudnn's backend interface: descriptors with typed attributes, from which cuDNN's front end (compiled into torch)
 * builds convolutions and attention. Every graph is accepted and has exactly one engine, without knobs; what a card
 * would reject, or how it would rank engines, is not known. A plan's workspace is the card's setting, and the
 * bytes of its graph's tensors are noted when it runs, so that the report can bound the workspace that is unknown. */
#include "cudnn.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cudnnDataType_t, cudnnBackendNumericalNote_t, cudnnBackendDescriptorType_t, cudnnBackendAttributeType_t and
 * cudnnBackendAttributeName_t, as far as they matter. */
enum { DATA_INT8 = 3, NOTE_TENSOR_CORE = 0 };
enum { ENGINE = 2, ENGINE_CONFIG = 3, ENGINE_HEURISTICS = 4, EXECUTION_PLAN = 5, TENSOR = 17 };
enum {
  TYPE_HANDLE = 0,
  TYPE_BOOLEAN = 2,
  TYPE_INT64 = 3,
  TYPE_DOUBLE = 5,
  TYPE_POINTER = 6,
  TYPE_DESCRIPTOR = 15,
  TYPE_INT32 = 23,
  TYPE_CHAR = 24,
  TYPE_FRACTION = 26,
};
enum {
  HEURISTICS_GRAPH = 201,
  HEURISTICS_RESULTS = 202,
  CONFIG_ENGINE = 300,
  CONFIG_INTERMEDIATE_INFO = 301,
  CONFIG_KNOB_CHOICES = 302,
  CONFIG_WORKSPACE_SIZE = 303,
  CONFIG_SHARED_MEMORY = 304,
  PLAN_CONFIG = 401,
  PLAN_WORKSPACE_SIZE = 402,
  PLAN_COMPUTED_INTERMEDIATES = 403,
  PLAN_RUN_ONLY_INTERMEDIATES = 404,
  PLAN_JSON = 405,
  GRAPH_OPERATIONS = 801,
  GRAPH_ENGINE_COUNT = 802,
  GRAPH_SAME_TOPOLOGY = 804,
  TENSOR_TYPE = 901,
  TENSOR_DIMENSIONS = 902,
  TENSOR_ID = 906,
  TENSOR_IS_VIRTUAL = 907,
  TENSOR_IS_BY_VALUE = 908,
  PACK_WORKSPACE = 1003,
  ENGINE_GRAPH = 1300,
  ENGINE_INDEX = 1301,
  ENGINE_KNOBS = 1302,
  ENGINE_NUMERICAL_NOTES = 1303,
  ENGINE_LAYOUTS = 1304,
  ENGINE_BEHAVIOR_NOTES = 1305,
  CACHE_HAS_KERNEL = 2401,
  CACHE_JSON = 2402,
  DEVICE_JSON = 2702,
};

/* ---- the store. A descriptor that is an attribute of another lives as long as the other: PyTorch destroys a graph
 * once it has a plan of it. */

struct attribute {
  int name, type;
  int64_t count;
  void *values;
};
struct descriptor {
  int kind;
  atomic_int holders;
  int count, capacity;
  struct attribute *attributes;
  int64_t tensor_bytes; /* of a finalized plan */
};

static size_t size_of(int type) {
  switch (type) {
    case TYPE_HANDLE: case TYPE_INT64: case TYPE_DOUBLE: case TYPE_POINTER: case TYPE_DESCRIPTOR: return 8;
    case TYPE_BOOLEAN: case TYPE_CHAR: return 1;
    case TYPE_FRACTION: return 16;
    default: return 4; /* int32, float, and the enumerations */
  }
}

static struct descriptor *new_descriptor(int kind) {
  struct descriptor *descriptor = calloc(1, sizeof *descriptor);
  if (!descriptor) return NULL;
  descriptor->kind = kind;
  atomic_init(&descriptor->holders, 1);
  return descriptor;
}

static void clear(struct attribute *attribute);

static void let_go(struct descriptor *descriptor) {
  if (!descriptor || atomic_fetch_sub(&descriptor->holders, 1) != 1) return;
  for (int i = 0; i < descriptor->count; i++) clear(&descriptor->attributes[i]);
  free(descriptor->attributes);
  free(descriptor);
}

static void clear(struct attribute *attribute) {
  struct descriptor **children = attribute->values;
  if (attribute->type == TYPE_DESCRIPTOR)
    for (int64_t i = 0; i < attribute->count; i++) let_go(children[i]);
  free(attribute->values);
}

static struct attribute *find(const struct descriptor *descriptor, int name) {
  for (int i = 0; descriptor && i < descriptor->count; i++)
    if (descriptor->attributes[i].name == name) return &descriptor->attributes[i];
  return NULL;
}

static int store(struct descriptor *descriptor, int name, int type, int64_t count, const void *values) {
  size_t bytes = (size_t)count * size_of(type);
  void *copy = bytes ? malloc(bytes) : NULL;
  if (bytes && !copy) return CUDNN_ALLOC_FAILED;
  if (bytes) memcpy(copy, values, bytes);

  struct attribute *attribute = find(descriptor, name);
  if (!attribute && descriptor->count == descriptor->capacity) {
    int wanted = descriptor->capacity ? 2 * descriptor->capacity : 8;
    struct attribute *grown = realloc(descriptor->attributes, (size_t)wanted * sizeof *grown);
    if (!grown) {
      free(copy);
      return CUDNN_ALLOC_FAILED;
    }
    descriptor->attributes = grown;
    descriptor->capacity = wanted;
  }
  if (type == TYPE_DESCRIPTOR)
    for (int64_t i = 0; i < count; i++)
      if (((struct descriptor **)copy)[i]) atomic_fetch_add(&((struct descriptor **)copy)[i]->holders, 1);
  if (attribute) clear(attribute);
  else attribute = &descriptor->attributes[descriptor->count++];
  *attribute = (struct attribute){name, type, count, copy};
  return CUDNN_SUCCESS;
}

/* Every attribute of the one becomes one of the other: how cuDNN hands out a descriptor. */
static int copy_attributes(struct descriptor *to, const struct descriptor *from) {
  int status = to && from ? CUDNN_SUCCESS : CUDNN_NULL_POINTER;
  for (int i = 0; status == CUDNN_SUCCESS && i < from->count; i++) {
    const struct attribute *attribute = &from->attributes[i];
    status = store(to, attribute->name, attribute->type, attribute->count, attribute->values);
  }
  if (status == CUDNN_SUCCESS) to->tensor_bytes = from->tensor_bytes;
  return status;
}

static struct descriptor *child(const struct descriptor *descriptor, int name) {
  const struct attribute *attribute = find(descriptor, name);
  return attribute && attribute->type == TYPE_DESCRIPTOR && attribute->count ? *(struct descriptor **)attribute->values : NULL;
}
static int64_t number(const struct descriptor *descriptor, int name, int64_t otherwise) {
  const struct attribute *attribute = find(descriptor, name);
  if (!attribute || attribute->count == 0) return otherwise;
  switch (size_of(attribute->type)) {
    case 1: return *(const uint8_t *)attribute->values;
    case 4: return *(const int32_t *)attribute->values;
    default: return *(const int64_t *)attribute->values;
  }
}

/* ---- the tensors of a graph, each once. Those that exist only inside a kernel, or are a number, take no memory. */

enum { MAX_TENSORS = 256 }; /* a graph with more counts some of them twice */
struct tally {
  int count;
  int64_t ids[MAX_TENSORS], bytes;
  bool has_int8;
};

static void count_tensor(struct tally *tally, const struct descriptor *tensor) {
  const struct attribute *dimensions = find(tensor, TENSOR_DIMENSIONS);
  if (!dimensions || dimensions->type != TYPE_INT64) return;
  if (number(tensor, TENSOR_IS_VIRTUAL, 0) || number(tensor, TENSOR_IS_BY_VALUE, 0)) return;
  int64_t id = number(tensor, TENSOR_ID, 0), count = 1;
  for (int i = 0; i < tally->count; i++)
    if (tally->ids[i] == id) return;
  if (tally->count < MAX_TENSORS) tally->ids[tally->count++] = id;
  for (int64_t i = 0; i < dimensions->count; i++) count *= ((const int64_t *)dimensions->values)[i];
  int type = (int)number(tensor, TENSOR_TYPE, 0);
  tally->bytes += (count * cudnn_bits_of(type) + 7) / 8;
  tally->has_int8 |= type == DATA_INT8;
}

static void count_operation(struct tally *tally, const struct descriptor *operation) {
  for (int i = 0; operation && i < operation->count; i++) {
    const struct attribute *attribute = &operation->attributes[i];
    for (int64_t j = 0; attribute->type == TYPE_DESCRIPTOR && j < attribute->count; j++) {
      const struct descriptor *value = ((struct descriptor **)attribute->values)[j];
      if (value && value->kind == TENSOR) count_tensor(tally, value);
    }
  }
}

static struct tally tally_of(const struct descriptor *graph) {
  struct tally tally = {0};
  const struct attribute *operations = find(graph, GRAPH_OPERATIONS);
  for (int64_t i = 0; operations && operations->type == TYPE_DESCRIPTOR && i < operations->count; i++)
    count_operation(&tally, ((struct descriptor **)operations->values)[i]);
  return tally;
}

/* ---- plans. Written down as text, a plan is the one number that matters here. */

static const char PLAN_TEXT[] = "{\"ullage\": {\"tensor_bytes\": %" PRId64 "}}";

static int finalize_plan(struct descriptor *plan) {
  int64_t workspace = (int64_t)cudnn_workspace_bytes();
  struct descriptor *config = child(plan, PLAN_CONFIG);
  const struct attribute *json = find(plan, PLAN_JSON);
  if (config) {
    plan->tensor_bytes = tally_of(child(child(config, CONFIG_ENGINE), ENGINE_GRAPH)).bytes;
  } else if (json) {
    char text[80] = "";
    memcpy(text, json->values, json->count < (int64_t)sizeof text ? (size_t)json->count : sizeof text - 1);
    if (sscanf(text, "{\"ullage\": {\"tensor_bytes\": %" SCNd64, &plan->tensor_bytes) != 1) return CUDNN_BAD_PARAM;
  } else {
    return CUDNN_BAD_PARAM;
  }
  return store(plan, PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &workspace);
}

/* The one engine that the heuristics know, made into the caller's engine configuration. */
static int answer_heuristics(const struct descriptor *heuristics, struct descriptor *config) {
  struct descriptor *engine = new_descriptor(ENGINE), *graph = child(heuristics, HEURISTICS_GRAPH);
  int64_t index = 0;
  int status = engine && config ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
  if (status == CUDNN_SUCCESS) status = store(engine, ENGINE_GRAPH, TYPE_DESCRIPTOR, 1, &graph);
  if (status == CUDNN_SUCCESS) status = store(engine, ENGINE_INDEX, TYPE_INT64, 1, &index);
  if (status == CUDNN_SUCCESS) status = store(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
  let_go(engine);
  return status;
}

/* ---- the interface */

ULLAGE_API int cudnnBackendCreateDescriptor(int kind, struct descriptor **out) {
  *out = new_descriptor(kind);
  return *out ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
}
ULLAGE_API int cudnnBackendDestroyDescriptor(struct descriptor *descriptor) {
  let_go(descriptor);
  return CUDNN_SUCCESS;
}
ACCEPTS(cudnnBackendInitialize)

ULLAGE_API int cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count, const void *values) {
  if (!descriptor || count < 0 || (count && !values)) return CUDNN_NULL_POINTER;
  return store(descriptor, name, type, count, values);
}

ULLAGE_API int cudnnBackendFinalize(struct descriptor *descriptor) {
  if (!descriptor) return CUDNN_NULL_POINTER;
  return descriptor->kind == EXECUTION_PLAN ? finalize_plan(descriptor) : CUDNN_SUCCESS;
}

/* One value, where there is room for it. */
static int answer(const void *value, size_t size, int64_t room, int64_t *count, void *out) {
  if (count) *count = 1;
  if (room > 0 && out) memcpy(out, value, size);
  return CUDNN_SUCCESS;
}
static int answer_number(int64_t value, int type, int64_t room, int64_t *count, void *out) {
  return answer(&value, size_of(type), room, count, out); /* little endian: the low bytes are the number */
}
static int answer_text(const char *text, int64_t room, int64_t *count, char *out) {
  int64_t length = (int64_t)strlen(text);
  if (count) *count = length;
  if (room > 0 && out) memcpy(out, text, (size_t)(room < length ? room : length));
  return CUDNN_SUCCESS;
}

/* What nobody has set. */
static int derive(const struct descriptor *descriptor, int name, int type, int64_t room, int64_t *count, void *out) {
  char text[80];
  switch (name) {
    case HEURISTICS_RESULTS:
      if (count) *count = 1;
      return room > 0 && out ? answer_heuristics(descriptor, *(struct descriptor **)out) : CUDNN_SUCCESS;
    case CONFIG_WORKSPACE_SIZE: return answer_number((int64_t)cudnn_workspace_bytes(), type, room, count, out);
    case GRAPH_ENGINE_COUNT: return answer_number(1, type, room, count, out);
    case CONFIG_SHARED_MEMORY: case GRAPH_SAME_TOPOLOGY: case CACHE_HAS_KERNEL: return answer_number(0, type, room, count, out);
    case CONFIG_INTERMEDIATE_INFO: case CONFIG_KNOB_CHOICES: case PLAN_COMPUTED_INTERMEDIATES: case PLAN_RUN_ONLY_INTERMEDIATES:
    case ENGINE_KNOBS: case ENGINE_LAYOUTS: case ENGINE_BEHAVIOR_NOTES:
      if (count) *count = 0;
      return CUDNN_SUCCESS;
    case ENGINE_NUMERICAL_NOTES: /* PyTorch's quantized convolution takes an engine only if it uses tensor cores */
      if (tally_of(child(descriptor, ENGINE_GRAPH)).has_int8) return answer_number(NOTE_TENSOR_CORE, type, room, count, out);
      if (count) *count = 0;
      return CUDNN_SUCCESS;
    case PLAN_JSON:
      snprintf(text, sizeof text, PLAN_TEXT, descriptor->tensor_bytes);
      return answer_text(text, room, count, out);
    case CACHE_JSON: case DEVICE_JSON: return answer_text("{}", room, count, out);
    default:
      snprintf(text, sizeof text, "cudnnBackendGetAttribute %d", name);
      return card_unwritten("cudnn", text, CUDNN_NOT_SUPPORTED);
  }
}

ULLAGE_API int cudnnBackendGetAttribute(const struct descriptor *descriptor, int name, int type, int64_t room, int64_t *count, void *out) {
  if (!descriptor) return CUDNN_NULL_POINTER;
  const struct attribute *attribute = find(descriptor, name);
  if (!attribute) return derive(descriptor, name, type, room, count, out);
  if (size_of(attribute->type) != size_of(type)) return CUDNN_BAD_TYPE;
  if (count) *count = attribute->count;
  int64_t given = room < attribute->count ? room : attribute->count;
  if (given <= 0 || !out) return CUDNN_SUCCESS;
  if (attribute->type != TYPE_DESCRIPTOR) {
    memcpy(out, attribute->values, (size_t)given * size_of(type));
    return CUDNN_SUCCESS;
  }
  int status = CUDNN_SUCCESS;
  for (int64_t i = 0; i < given && status == CUDNN_SUCCESS; i++)
    status = copy_attributes(((struct descriptor **)out)[i], ((struct descriptor **)attribute->values)[i]);
  return status;
}

ULLAGE_API int cudnnBackendExecute(void *handle, const struct descriptor *plan, const struct descriptor *pack) {
  (void)handle;
  if (!plan || !pack) return CUDNN_NULL_POINTER;
  if (plan->kind != EXECUTION_PLAN) return CUDNN_BAD_PARAM;
  card_note_plan(plan->tensor_bytes);
  cudnn_report_workspace((const void *)number(pack, PACK_WORKSPACE, 0), (size_t)number(plan, PLAN_WORKSPACE_SIZE, 0));
  card_launch(NULL);
  return CUDNN_SUCCESS;
}
