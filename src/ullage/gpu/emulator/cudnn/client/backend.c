/* libcudnn's backend interface: descriptors with typed attributes, from which cuDNN's front end (compiled into torch)
 * builds convolutions and attention. Which engines a graph has, their order and their workspaces are cuDNN's own answer
 * (ask_planner.c). Where it cannot be asked, a graph is accepted with one engine, without knobs, whose workspace is
 * nothing, and the bytes of its tensors are noted, so that the report can bound what is unknown. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask_planner.h"

enum {
  DATA_INT8 = 3,
  NOTE_TENSOR_CORE = 0,
  NOTE_NONDETERMINISTIC = 4
}; /* cudnnDataType_t, cudnnBackendNumericalNote_t */
enum { NO_ENGINE = -1 }; /* the index of an engine that is not cuDNN's: of a graph of which it knows none */
/* Of two such: what cuDNN would rank first, and any other. PyTorch leaves the first out where the script wants no TF32 or
 * the same result every time, and tries both for a benchmark; so the range of the workspace is wide just then. */
enum { RANK_OF_FIRST = 0, RANK_OF_ALL = 1 };
enum { HEURISTICS_MODE = 200, MODE_FALLBACK = 2 };

/* ---- the tensors of a graph, each once. Those that exist only inside a kernel, or are a number, take no memory. */

enum { MAX_TENSORS = 256 }; /* a graph with more counts some of them twice */
struct tally {
  int count;
  int64_t ids[MAX_TENSORS], bytes;
  bool has_int8;
};

static void count_tensor(struct tally *tally, const struct descriptor *tensor) {
  const struct attribute *dimensions = find_attribute(tensor, TENSOR_DIMENSIONS);
  if (!dimensions || dimensions->type != TYPE_INT64) return;
  if (number_of(tensor, TENSOR_IS_VIRTUAL, 0) || number_of(tensor, TENSOR_IS_BY_VALUE, 0)) return;
  int64_t id = number_of(tensor, TENSOR_ID, 0), count = 1;
  for (int i = 0; i < tally->count; i++)
    if (tally->ids[i] == id) return;
  if (tally->count < MAX_TENSORS) tally->ids[tally->count++] = id;
  for (int64_t i = 0; i < dimensions->count; i++) count *= ((const int64_t *)dimensions->values)[i];
  int type = (int)number_of(tensor, TENSOR_TYPE, 0);
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
  const struct attribute *operations = find_attribute(graph, GRAPH_OPERATIONS);
  for (int64_t i = 0; operations && operations->type == TYPE_DESCRIPTOR && i < operations->count; i++)
    count_operation(&tally, ((struct descriptor **)operations->values)[i]);
  return tally;
}

/* The first line of an answer is why there is none. */
static void note_line(const char *answer) {
  char text[400];
  snprintf(text, sizeof text, "%.*s", (int)strcspn(answer, "\n"), answer);
  int status;
  char said[440];
  const char *reason = strchr(text, ' ');
  bool is_refused = sscanf(text, "refused %d", &status) == 1 && reason && (reason = strchr(reason + 1, ' '));
  snprintf(said, sizeof said, "%s%s", is_refused ? "refused by cuDNN:" : "", reason ? reason + !is_refused : text);
  card_note_reason(said);
}

/* ---- plans. Written down as text, a plan is the numbers that matter here. */

static const char PLAN_WRITTEN[] =
    "{\"ullage\": [%d, %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]}";
static const char PLAN_READ[] = "{\"ullage\": [%d, %" SCNd64 ", %" SCNd64 ", %" SCNd64 ", %" SCNd64 ", %" SCNd64;

static _Thread_local char refusal[400]; /* cuDNN's latest, in case nothing else is left */

/* What was answered of a plan: "workspace SIZE LOW HIGH SOURCE", "refused STATUS REASON" or "unknown REASON". */
static int take_answer(const char *answer, struct cudnn_plan *plan) {
  int status = CUDNN_SUCCESS;
  int64_t size = -1, low = -1, high = -1;
  char source[16] = "";
  if (!answer) return CUDNN_SUCCESS;
  if (sscanf(answer, "workspace %" SCNd64 " %" SCNd64 " %" SCNd64 " %15s", &size, &low, &high, source) == 4 &&
      size >= 0 && low >= 0 && high >= low)
    *plan = (struct cudnn_plan){
        strcmp(source, "cudnn") == 0 ? PLAN_CUDNN : PLAN_TABLE, plan->problem, plan->tensor_bytes, size, low, high};
  else if (sscanf(answer, "refused %d", &status) != 1 || status == CUDNN_SUCCESS) note_line(answer);
  else snprintf(refusal, sizeof refusal, "refused by cuDNN: %.*s", (int)strcspn(answer + 8, "\n"), answer + 8);
  return status;
}

/* The graphs that have had a plan of cuDNN's; one that is overwritten only costs a needless estimate. */
enum { PLANNED = 8192 };
static _Atomic uint64_t planned[PLANNED];

/* An estimate, where cuDNN cannot be asked or refuses every engine. */
static int estimate(const struct descriptor *config, struct cudnn_plan *plan) {
  const char *wanted = config->rank == RANK_OF_ALL ? "estimate all" : "estimate";
  char *answer = config->question ? planner_ask(wanted, config->question) : NULL;
  if (answer) take_answer(answer, plan);
  free(answer);
  if (refusal[0]) card_note_reason(refusal); /* a real GPU raises an error then */
  refusal[0] = 0;
  return CUDNN_SUCCESS;
}

static int plan_of(const struct descriptor *config, struct cudnn_plan *plan) {
  const struct descriptor *engine = child_of(config, CONFIG_ENGINE), *graph = child_of(engine, ENGINE_GRAPH);
  int64_t given = cudnn_given_workspace_bytes();
  *plan = (struct cudnn_plan){
      .source = PLAN_UNKNOWN, .problem = planner_hash(graph), .tensor_bytes = tally_of(graph).bytes};
  if (given >= 0) {
    *plan = (struct cudnn_plan){PLAN_GIVEN, plan->problem, plan->tensor_bytes, given, given, given};
    return CUDNN_SUCCESS;
  }
  if (number_of(engine, ENGINE_INDEX, NO_ENGINE) == NO_ENGINE) {
    const char *told = config->question ? config->question->answer : NULL;
    bool is_asked = told && *told; /* otherwise no engine could, and no better one will follow */
    return is_asked && planned[plan->problem % PLANNED] == plan->problem ? CUDNN_NOT_SUPPORTED : estimate(config, plan);
  }
  char wanted[32];
  snprintf(wanted, sizeof wanted, "plan %d", config->rank);
  char *answer = config->question ? planner_ask(wanted, config->question) : planner_ask("config", config);
  int status = take_answer(answer, plan);
  if (status == CUDNN_SUCCESS && plan->source == PLAN_UNKNOWN) status = estimate(config, plan);
  if (status == CUDNN_SUCCESS) {
    if (plan->source == PLAN_CUDNN) planned[plan->problem % PLANNED] = plan->problem;
    refusal[0] = 0;
  }
  free(answer);
  return status;
}

static int finalize_plan(struct descriptor *plan) {
  const struct descriptor *config = child_of(plan, PLAN_CONFIG);
  const struct attribute *json = find_attribute(plan, PLAN_JSON);
  struct cudnn_plan *found = &plan->plan;
  if (config) {
    int status = plan_of(config, found);
    if (status != CUDNN_SUCCESS) return status;
  } else if (json) {
    char text[160] = "";
    memcpy(text, json->values, json->count < (int64_t)sizeof text ? (size_t)json->count : sizeof text - 1);
    if (sscanf(text, PLAN_READ, &found->source, (int64_t *)&found->problem, &found->tensor_bytes, &found->workspace,
               &found->low, &found->high) != 6)
      return CUDNN_BAD_PARAM;
  } else {
    return CUDNN_BAD_PARAM;
  }
  return store_attribute(plan, PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &found->workspace);
}

/* ---- engines */

/* An engine of the graph, made into the caller's engine configuration. */
static int answer_engine(const struct descriptor *heuristics, int64_t index, struct descriptor *config,
                         struct descriptor **made) {
  struct descriptor *engine = new_descriptor(ENGINE), *graph = child_of(heuristics, HEURISTICS_GRAPH);
  int status = engine && config ? CUDNN_SUCCESS : CUDNN_ALLOC_FAILED;
  if (status == CUDNN_SUCCESS) status = store_attribute(engine, ENGINE_GRAPH, TYPE_DESCRIPTOR, 1, &graph);
  if (status == CUDNN_SUCCESS) status = store_attribute(engine, ENGINE_INDEX, TYPE_INT64, 1, &index);
  *made = engine;
  return status;
}

enum { MOST_VALUES = 64, MOST_ENGINES = 1024 }; /* of an answer, which may come from a file that is damaged */
/* Numbers with commas, up to another character. */
static const char *read_numbers(const char *at, int32_t *values, int64_t *count) {
  for (*count = 0; *at && *at != ';' && *at != '\n' && *count < MOST_VALUES;) {
    char *end;
    values[(*count)++] = (int32_t)strtol(at, &end, 10);
    at = end + (*end == ',');
    if (end == at) break;
  }
  return at + (*at == ';');
}

static int store_knobs(struct descriptor *config, const char *at) {
  struct descriptor *knobs[MOST_VALUES];
  int64_t count = 0;
  int status = CUDNN_SUCCESS;
  while (*at && *at != '\n' && count < MOST_VALUES && status == CUDNN_SUCCESS) {
    char *end;
    int32_t type = (int32_t)strtol(at, &end, 10);
    if (*end != '=') break;
    int64_t value = strtoll(end + 1, &end, 10);
    struct descriptor *knob = knobs[count] = new_descriptor(KNOB_CHOICE);
    if (!knob) break;
    count++;
    status = store_attribute(knob, KNOB_CHOICE_TYPE, TYPE_KNOB, 1, &type);
    if (status == CUDNN_SUCCESS) status = store_attribute(knob, KNOB_CHOICE_VALUE, TYPE_INT64, 1, &value);
    at = end + (*end == ',');
  }
  if (status == CUDNN_SUCCESS) status = store_attribute(config, CONFIG_KNOB_CHOICES, TYPE_DESCRIPTOR, count, knobs);
  for (int64_t i = 0; i < count; i++) let_go(knobs[i]);
  return status;
}

/* One line "INDEX;NOTES;BEHAVIOURS;KNOBS" of an answer. */
static int answer_ranked(struct descriptor *heuristics, const char *text, int rank, struct descriptor *config) {
  int32_t numbers[MOST_VALUES];
  int64_t count;
  struct descriptor *engine = NULL;
  int status = answer_engine(heuristics, strtoll(text, NULL, 10), config, &engine);
  const char *at = strchr(text, ';');
  if (status == CUDNN_SUCCESS && at) {
    at = read_numbers(at + 1, numbers, &count);
    status = store_attribute(engine, ENGINE_NUMERICAL_NOTES, TYPE_NUMERICAL_NOTE, count, numbers);
    at = read_numbers(at, numbers, &count);
    if (status == CUDNN_SUCCESS)
      status = store_attribute(engine, ENGINE_BEHAVIOR_NOTES, TYPE_BEHAVIOUR_NOTE, count, numbers);
    if (status == CUDNN_SUCCESS) status = store_knobs(config, at);
  }
  if (status == CUDNN_SUCCESS) status = store_attribute(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
  if (status == CUDNN_SUCCESS) status = store_question(config, heuristics, rank);
  let_go(engine);
  return status;
}

static int answer_unknown(struct descriptor *heuristics, int rank, struct descriptor *config) {
  static const int32_t notes[] = {NOTE_TENSOR_CORE, NOTE_NONDETERMINISTIC};
  struct descriptor *engine = NULL;
  int status = answer_engine(heuristics, NO_ENGINE, config, &engine);
  if (status == CUDNN_SUCCESS && rank != RANK_OF_ALL)
    status = store_attribute(engine, ENGINE_NUMERICAL_NOTES, TYPE_NUMERICAL_NOTE, 2, notes);
  if (status == CUDNN_SUCCESS) status = store_attribute(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
  if (status == CUDNN_SUCCESS) status = store_question(config, heuristics, rank);
  let_go(engine);
  return status;
}

/* The engines of a graph, best first, made into the caller's engine configurations. */
static int answer_heuristics(struct descriptor *heuristics, int64_t room, int64_t *count, struct descriptor **configs) {
  int64_t ranked = 0;
  if (!heuristics->answer && cudnn_given_workspace_bytes() < 0)
    heuristics->answer = planner_ask("heuristics", heuristics);
  if (!heuristics->answer) heuristics->answer = strdup("");
  const char *answer =
      heuristics->answer; /* torch asks twice, how many and which: both times the same, also if it is none */
  if (answer && *answer && sscanf(answer, "engines %" SCNd64, &ranked) != 1) note_line(answer);
  int status = CUDNN_SUCCESS;
  /* The last resort, where every engine refuses: PyTorch asks the fallback heuristics only then, and for benchmarks. */
  if (ranked < 0 || ranked > MOST_ENGINES) ranked = 0;
  int unknown = ranked == 0 ? 2 : number_of(heuristics, HEURISTICS_MODE, 0) == MODE_FALLBACK;
  if (count) *count = ranked + unknown;
  const char *at = answer;
  int rank = 0;
  for (; rank < ranked && rank < room && configs && status == CUDNN_SUCCESS; rank++) {
    at = strchr(at, '\n');
    if (!at || !*++at) break;
    status = answer_ranked(heuristics, at, rank, configs[rank]);
  }
  for (; unknown && rank >= ranked && rank < room && configs && status == CUDNN_SUCCESS; unknown--, rank++)
    status = answer_unknown(heuristics, unknown == 2 ? RANK_OF_FIRST : RANK_OF_ALL, configs[rank]);
  /* torch 2.15 allocates space for the best engine only, and reads as many as it is told there are. */
  if (count && room > 0 && configs) *count = rank;
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

ULLAGE_API int cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count,
                                        const void *values) {
  if (!descriptor || count < 0 || (count && !values)) return CUDNN_NULL_POINTER;
  return store_attribute(descriptor, name, type, count, values);
}

ULLAGE_API int cudnnBackendFinalize(struct descriptor *descriptor) {
  if (!descriptor) return CUDNN_NULL_POINTER;
  return descriptor->kind == EXECUTION_PLAN ? finalize_plan(descriptor) : CUDNN_SUCCESS;
}

/* One value, if there is space for it. */
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

static int answer_workspace(const struct descriptor *config, int type, int64_t room, int64_t *count, void *out) {
  struct cudnn_plan plan;
  int status = plan_of(config, &plan);
  return status == CUDNN_SUCCESS ? answer_number(plan.workspace, type, room, count, out) : status;
}

/* Attributes that were not set. */
static int derive(struct descriptor *descriptor, int name, int type, int64_t room, int64_t *count, void *out) {
  char text[160];
  const struct cudnn_plan *plan = &descriptor->plan;
  switch (name) {
    case HEURISTICS_RESULTS: return answer_heuristics(descriptor, room, count, out);
    case CONFIG_WORKSPACE_SIZE: return answer_workspace(descriptor, type, room, count, out);
    case GRAPH_ENGINE_COUNT: return answer_number(1, type, room, count, out);
    case CONFIG_SHARED_MEMORY:
    case GRAPH_SAME_TOPOLOGY:
    case CACHE_HAS_KERNEL: return answer_number(0, type, room, count, out);
    case CONFIG_INTERMEDIATE_INFO:
    case CONFIG_KNOB_CHOICES:
    case PLAN_COMPUTED_INTERMEDIATES:
    case PLAN_RUN_ONLY_INTERMEDIATES:
    case ENGINE_KNOBS:
    case ENGINE_LAYOUTS:
    case ENGINE_BEHAVIOR_NOTES:
      if (count) *count = 0;
      return CUDNN_SUCCESS;
    case ENGINE_NUMERICAL_NOTES: /* PyTorch's quantized convolution takes an engine only if it uses tensor cores */
      if (tally_of(child_of(descriptor, ENGINE_GRAPH)).has_int8)
        return answer_number(NOTE_TENSOR_CORE, type, room, count, out);
      if (count) *count = 0;
      return CUDNN_SUCCESS;
    case PLAN_JSON:
      snprintf(text, sizeof text, PLAN_WRITTEN, plan->source, (int64_t)plan->problem, plan->tensor_bytes,
               plan->workspace, plan->low, plan->high);
      return answer_text(text, room, count, out);
    case CACHE_JSON:
    case DEVICE_JSON: return answer_text("{}", room, count, out);
    default:
      snprintf(text, sizeof text, "cudnnBackendGetAttribute %d", name);
      return card_unwritten("cudnn", text, CUDNN_NOT_SUPPORTED);
  }
}

ULLAGE_API int cudnnBackendGetAttribute(struct descriptor *descriptor, int name, int type, int64_t room, int64_t *count,
                                        void *out) {
  if (!descriptor) return CUDNN_NULL_POINTER;
  const struct attribute *attribute = find_attribute(descriptor, name);
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
  card_note_plan(&plan->plan);
  cudnn_report_workspace((const void *)number_of(pack, PACK_WORKSPACE, 0),
                         (size_t)number_of(plan, PLAN_WORKSPACE_SIZE, 0));
  card_launch(NULL);
  return CUDNN_SUCCESS;
}
