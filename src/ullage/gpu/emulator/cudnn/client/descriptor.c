/* The store of descriptors. */
#include "descriptor.h"

#include <stdlib.h>
#include <string.h>

size_t size_of(int type) {
  switch (type) {
    case TYPE_HANDLE:
    case TYPE_INT64:
    case TYPE_DOUBLE:
    case TYPE_POINTER:
    case TYPE_DESCRIPTOR: return 8;
    case TYPE_BOOLEAN:
    case TYPE_CHAR: return 1;
    case TYPE_FRACTION: return 16;
    default: return 4; /* int32, float, and the enumerations */
  }
}

struct descriptor *new_descriptor(int kind) {
  struct descriptor *descriptor = calloc(1, sizeof *descriptor);
  if (!descriptor) return NULL;
  descriptor->kind = kind;
  atomic_init(&descriptor->holders, 1);
  return descriptor;
}

static void clear(struct attribute *attribute) {
  struct descriptor **children = attribute->values;
  if (attribute->type == TYPE_DESCRIPTOR)
    for (int64_t i = 0; i < attribute->count; i++) let_go(children[i]);
  free(attribute->values);
}

void let_go(struct descriptor *descriptor) {
  if (!descriptor || atomic_fetch_sub(&descriptor->holders, 1) != 1) return;
  for (int i = 0; i < descriptor->count; i++) clear(&descriptor->attributes[i]);
  free(descriptor->attributes);
  let_go(descriptor->question);
  free(descriptor->answer);
  free(descriptor);
}

struct attribute *find_attribute(const struct descriptor *descriptor, int name) {
  for (int i = 0; descriptor && i < descriptor->count; i++)
    if (descriptor->attributes[i].name == name) return &descriptor->attributes[i];
  return NULL;
}

int store_attribute(struct descriptor *descriptor, int name, int type, int64_t count, const void *values) {
  size_t bytes = (size_t)count * size_of(type);
  void *copy = bytes ? malloc(bytes) : NULL;
  if (bytes && !copy) return CUDNN_ALLOC_FAILED;
  if (bytes) memcpy(copy, values, bytes);

  struct attribute *attribute = find_attribute(descriptor, name);
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

int store_question(struct descriptor *config, struct descriptor *question, int rank) {
  if (question) atomic_fetch_add(&question->holders, 1);
  let_go(config->question);
  config->question = question;
  config->rank = rank;
  return CUDNN_SUCCESS;
}

int copy_attributes(struct descriptor *to, const struct descriptor *from) {
  int status = to && from ? CUDNN_SUCCESS : CUDNN_NULL_POINTER;
  for (int i = 0; status == CUDNN_SUCCESS && i < from->count; i++) {
    const struct attribute *attribute = &from->attributes[i];
    status = store_attribute(to, attribute->name, attribute->type, attribute->count, attribute->values);
  }
  if (status != CUDNN_SUCCESS) return status;
  to->plan = from->plan;
  return store_question(to, from->question, from->rank);
}

struct descriptor *child_of(const struct descriptor *descriptor, int name) {
  const struct attribute *attribute = find_attribute(descriptor, name);
  return attribute && attribute->type == TYPE_DESCRIPTOR && attribute->count ? *(struct descriptor **)attribute->values
                                                                             : NULL;
}

int64_t number_of(const struct descriptor *descriptor, int name, int64_t otherwise) {
  const struct attribute *attribute = find_attribute(descriptor, name);
  if (!attribute || attribute->count == 0) return otherwise;
  switch (size_of(attribute->type)) {
    case 1: return *(const uint8_t *)attribute->values;
    case 4: return *(const int32_t *)attribute->values;
    default: return *(const int64_t *)attribute->values;
  }
}
