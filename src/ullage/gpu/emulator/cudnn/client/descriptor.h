/* Descriptors of cuDNN's backend interface: typed attributes, kept as they were set. */
#ifndef ULLAGE_CUDNN_DESCRIPTOR_H
#define ULLAGE_CUDNN_DESCRIPTOR_H

#include <stdatomic.h>

#include "cudnn.h"

/* cudnnBackendDescriptorType_t, cudnnBackendAttributeType_t and cudnnBackendAttributeName_t, as far as they matter. */
enum { ENGINE = 2, ENGINE_CONFIG = 3, ENGINE_HEURISTICS = 4, EXECUTION_PLAN = 5, KNOB_CHOICE = 7, TENSOR = 17 };
enum {
  TYPE_HANDLE = 0,
  TYPE_BOOLEAN = 2,
  TYPE_INT64 = 3,
  TYPE_DOUBLE = 5,
  TYPE_POINTER = 6,
  TYPE_KNOB = 9,
  TYPE_NUMERICAL_NOTE = 11,
  TYPE_DESCRIPTOR = 15,
  TYPE_BEHAVIOUR_NOTE = 19,
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
  KNOB_CHOICE_TYPE = 600,
  KNOB_CHOICE_VALUE = 601,
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

struct attribute {
  int name, type;
  int64_t count;
  void *values;
};
/* A descriptor that is an attribute of another lives as long as the other: PyTorch destroys a graph once it has a plan
 * of it. */
struct descriptor {
  int kind;
  atomic_int holders;
  int count, capacity;
  struct attribute *attributes;
  struct descriptor *question; /* of an engine configuration: the heuristics that ranked it ... */
  int rank;                    /* ... and where */
  char *answer;                /* of heuristics: what cuDNN's process has said */
  struct cudnn_plan plan;      /* of a finalized plan */
};

struct descriptor *new_descriptor(int kind);
void let_go(struct descriptor *descriptor);
size_t size_of(int type); /* of one value */
struct attribute *find_attribute(const struct descriptor *descriptor, int name);
int store_attribute(struct descriptor *descriptor, int name, int type, int64_t count, const void *values);
int store_question(struct descriptor *config, struct descriptor *question, int rank);
/* Every attribute of the one becomes one of the other: how cuDNN returns a descriptor. */
int copy_attributes(struct descriptor *to, const struct descriptor *from);
struct descriptor *child_of(const struct descriptor *descriptor, int name);
int64_t number_of(const struct descriptor *descriptor, int name, int64_t otherwise);

#endif
