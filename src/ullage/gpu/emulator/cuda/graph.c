/* libcudart: graphs. A graph is a number of nodes; to launch it counts as one kernel. What nodes do is not kept, but for the
 * memory that an allocation node takes: that is taken when the node is made, and stays with the graph's pool. */
#include <string.h>

#include "runtime.h"

enum node_kind { KERNEL, COPY, FILL, HOST, CHILD, EMPTY, WAIT_EVENT, RECORD_EVENT, ALLOCATE = 10, FREE = 11 };
struct node {
  enum node_kind kind;
  uint64_t address;
};

API int cudaGraphGetNodes(void *handle, void **nodes, size_t *count) {
  struct graph *graph = handle;
  if (!nodes) *count = graph ? graph->nodes : 0;
  else memset(nodes, 0, *count * sizeof *nodes);
  return CUDA_SUCCESS;
}
API int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  (void)flags;
  struct graph *made = *executable = card_new_handle(sizeof *made);
  if (!made) return cuda_fail(CUDA_OUT_OF_MEMORY);
  if (graph) *made = *(struct graph *)graph;
  return CUDA_SUCCESS;
}
API int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
API int cudaGraphLaunch(void *executable, void *stream) {
  (void)stream;
  card_launch(NULL);
  if (executable) card_note_sent(((struct graph *)executable)->sent_bytes);
  return CUDA_SUCCESS;
}
API int cudaGraphDestroy(void *graph) {
  card_drop_handle(graph);
  return CUDA_SUCCESS;
}
API int cudaGraphExecDestroy(void *executable) {
  card_drop_handle(executable);
  return CUDA_SUCCESS;
}
API int cudaUserObjectCreate(void **object, void *data, void (*destroy)(void *), unsigned references, unsigned flags) {
  (void)data, (void)destroy, (void)references, (void)flags;
  *object = card_new_handle(16);
  return *object ? CUDA_SUCCESS : cuda_fail(CUDA_OUT_OF_MEMORY);
}
API int cudaUserObjectRelease(void *object, unsigned count) {
  (void)count;
  card_drop_handle(object);
  return CUDA_SUCCESS;
}
// clang-format off: a list of macros
ACCEPTS(cudaGraphRetainUserObject) ACCEPTS(cudaGraphDebugDotPrint) ACCEPTS(cudaGraphUpload)
    // clang-format on

    API int cudaGraphCreate(struct graph **out, unsigned flags) {
  (void)flags;
  *out = card_new_handle(sizeof **out);
  return *out ? CUDA_SUCCESS : cuda_fail(CUDA_OUT_OF_MEMORY);
}
API int cudaGraphClone(struct graph **out, const struct graph *graph) {
  int status = cudaGraphCreate(out, 0);
  if (status == CUDA_SUCCESS) (*out)->nodes = graph->nodes, (*out)->sent_bytes = graph->sent_bytes;
  return status;
}
static int add_node(struct node **out, struct graph *graph, enum node_kind kind) {
  *out = card_new_handle(sizeof **out);
  if (!*out || !graph) return cuda_fail(CUDA_INVALID_VALUE);
  (*out)->kind = kind;
  graph->nodes++;
  return CUDA_SUCCESS;
}
#define ADDS(name, kind) \
  API int cudaGraphAdd##name(struct node **out, struct graph *graph) { return add_node(out, graph, kind); }
// clang-format off: a list of macros
ADDS(KernelNode, KERNEL) ADDS(MemcpyNode, COPY) ADDS(MemcpyNode1D, COPY) ADDS(MemcpyNodeToSymbol, COPY) ADDS(MemcpyNodeFromSymbol, COPY)
ADDS(MemsetNode, FILL) ADDS(HostNode, HOST) ADDS(ChildGraphNode, CHILD) ADDS(EmptyNode, EMPTY) ADDS(EventWaitNode, WAIT_EVENT)
ADDS(EventRecordNode, RECORD_EVENT)
    // clang-format on

    /* struct cudaMemAllocNodeParams */
    struct allocation_node {
  char pool_properties[88];
  const void *access;
  size_t access_count, size;
  void *address;
};
API int cudaGraphAddMemAllocNode(struct node **out, struct graph *graph, const void *before, size_t count,
                                 struct allocation_node *node) {
  (void)before, (void)count;
  node->address = (void *)card_pool_allocate(card_pool_current(card_current()), node->size);
  if (!node->address) return cuda_fail(CUDA_OUT_OF_MEMORY);
  card_note_outside(CALLER, (uint64_t)node->address, node->size, false);
  int status = add_node(out, graph, ALLOCATE);
  if (status == CUDA_SUCCESS) (*out)->address = (uint64_t)node->address;
  return status;
}
API int cudaGraphAddMemFreeNode(struct node **out, struct graph *graph, const void *before, size_t count,
                                void *address) {
  (void)before, (void)count;
  card_forget_outside((uint64_t)address);
  card_pool_free((uint64_t)address);
  return add_node(out, graph, FREE);
}
API int cudaGraphDestroyNode(struct node *node) {
  card_drop_handle(node);
  return CUDA_SUCCESS;
}
/* The nodes of what was captured have no handles: they count as kernels. */
API int cudaGraphNodeGetType(const struct node *node, int *kind) {
  *kind = node ? (int)node->kind : KERNEL;
  return CUDA_SUCCESS;
}
API int cudaGraphGetRootNodes(struct graph *graph, void **nodes, size_t *count) {
  size_t roots = graph && graph->nodes ? 1 : 0;
  if (nodes && *count) memset(nodes, 0, *count * sizeof *nodes);
  *count = roots;
  return CUDA_SUCCESS;
}
#if ULLAGE_CUDA_MAJOR < 13
API int cudaGraphGetEdges(void *graph, void **from, void **to, size_t *count) {
  (void)graph, (void)from, (void)to;
  *count = 0;
  return CUDA_SUCCESS;
}
#else
API int cudaGraphGetEdges(void *graph, void **from, void **to, void *data, size_t *count) {
  (void)graph, (void)from, (void)to, (void)data;
  *count = 0;
  return CUDA_SUCCESS;
}
#endif
API int cudaGraphInstantiateWithParams(void **executable, void *graph, void *parameters) {
  (void)parameters;
  return cudaGraphInstantiateWithFlags(executable, graph, 0);
}
/* struct cudaGraphExecUpdateResultInfo */
struct update_result {
  int result;
  void *node, *from_node;
};
API int cudaGraphExecUpdate(void *executable, void *graph, struct update_result *out) {
  if (executable && graph) ((struct graph *)executable)->sent_bytes = ((struct graph *)graph)->sent_bytes;
  *out = (struct update_result){0, NULL, NULL};
  return CUDA_SUCCESS;
}
API int cudaGraphExecGetFlags(void *executable, unsigned long long *flags) {
  (void)executable;
  *flags = 0;
  return CUDA_SUCCESS;
}
API int cudaGraphNodeGetEnabled(void *executable, void *node, unsigned *enabled) {
  (void)executable, (void)node;
  *enabled = 1;
  return CUDA_SUCCESS;
}
// clang-format off: a list of macros
ACCEPTS(cudaGraphAddDependencies) ACCEPTS(cudaGraphRemoveDependencies) ACCEPTS(cudaGraphNodeSetEnabled)
ACCEPTS(cudaGraphKernelNodeSetParams) ACCEPTS(cudaGraphMemcpyNodeSetParams) ACCEPTS(cudaGraphMemsetNodeSetParams)
ACCEPTS(cudaGraphHostNodeSetParams) ACCEPTS(cudaGraphKernelNodeSetAttribute) ACCEPTS(cudaGraphKernelNodeCopyAttributes)
ACCEPTS(cudaGraphExecKernelNodeSetParams) ACCEPTS(cudaGraphExecMemcpyNodeSetParams) ACCEPTS(cudaGraphExecMemcpyNodeSetParams1D)
ACCEPTS(cudaGraphExecMemsetNodeSetParams) ACCEPTS(cudaGraphExecHostNodeSetParams) ACCEPTS(cudaGraphExecChildGraphNodeSetParams)
ACCEPTS(cudaGraphReleaseUserObject) ACCEPTS(cudaUserObjectRetain)
    // clang-format on
