#define _GNU_SOURCE
#include "stacks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 200 /* frames of a stack that are kept, the innermost */, FIRST_CAPACITY = 1 << 12 };

static struct stacks_layout layout;
static atomic_bool is_following;

/* CPython's functions. None of those called here touches a reference count or the state of an interpreter, so the lock
 * is not needed: the code objects are alive, because the frames that are read are being executed. */
static void *(*thread_state)(void);                            /* PyGILState_GetThisThreadState */
static int (*line_of_address)(void *code, int offset);         /* PyCode_Addr2Line */
static intptr_t (*text_length)(void *text);                    /* PyUnicode_GetLength */
static uint32_t (*text_character)(void *text, intptr_t index); /* PyUnicode_ReadChar */
static int64_t (*hash_of)(void *object);                       /* PyObject_Hash, of str and bytes only */

/* One place in the tree of calls. `identity` tells a code object from a later one at the same address. */
struct place {
  const char *code;
  uint64_t identity;
  uint32_t parent, offset;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place *places; /* [0] is not used */
static struct stacks_node *nodes;
static uint32_t *slots; /* open addressing over `places`: twice as many */
static uint32_t count = 1, capacity;

static void *pointer_at(const void *base, int32_t offset) { return *(void **)((const char *)base + offset); }

/* ---- code objects */

/* str and bytes keep their hash beside their length: PyASCIIObject.hash, PyBytesObject.ob_shash; -1: not asked for yet. */
enum { HASH = 24 };

static uint64_t hash_in(void *object) {
  int64_t known = *(int64_t *)((char *)object + HASH);
  return (uint64_t)(known != -1 ? known : hash_of(object));
}

/* From what the code object says, not from where it says it: memory of a dead one is used again. */
static uint64_t identity_of(const char *code) {
  uint64_t identity = *(const uint32_t *)(code + layout.code_firstlineno);
  identity = identity * 0x9e3779b97f4a7c15u ^ hash_in(pointer_at(code, layout.code_filename));
  identity = identity * 0xbf58476d1ce4e5b9u ^ hash_in(pointer_at(code, layout.code_qualname));
  return identity * 0x94d049bb133111ebu ^ hash_in(pointer_at(code, layout.code_linetable));
}

/* ---- texts */

static size_t put_utf8(char *out, uint32_t c) {
  if (c < 0x80) return out[0] = (char)c, 1;
  if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 0x3f)), 2;
  if (c < 0x10000)
    return out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 0x3f)), out[2] = (char)(0x80 | (c & 0x3f)),
           3;
  out[0] = (char)(0xf0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 0x3f));
  return out[2] = (char)(0x80 | (c >> 6 & 0x3f)), out[3] = (char)(0x80 | (c & 0x3f)), 4;
}

static const char *copy_text(void *text) {
  intptr_t length = text ? text_length(text) : 0;
  char *copy = length < 0 ? NULL : malloc((size_t)length * 4 + 1), *end = copy;
  if (!copy) return "";
  for (intptr_t i = 0; i < length; i++) end += put_utf8(end, text_character(text, i));
  *end = 0;
  return copy;
}

/* ---- the tree */

static uint32_t *slot_of(const struct place *place) {
  uint64_t hash = (uintptr_t)place->code * 0x9e3779b97f4a7c15u;
  hash = (hash ^ place->parent) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ place->offset) * 0x94d049bb133111ebu;
  uint32_t mask = capacity * 2 - 1;
  for (uint32_t i = (uint32_t)(hash >> 32) & mask;; i = (i + 1) & mask) {
    const struct place *known = &places[slots[i]];
    if (!slots[i] || (known->code == place->code && known->identity == place->identity &&
                      known->parent == place->parent && known->offset == place->offset))
      return &slots[i];
  }
}

static bool grow(void) {
  uint32_t wanted = capacity ? capacity * 2 : FIRST_CAPACITY;
  struct place *more_places = realloc(places, wanted * sizeof *places);
  if (more_places) places = more_places;
  struct stacks_node *more_nodes = realloc(nodes, wanted * sizeof *nodes);
  if (more_nodes) nodes = more_nodes;
  uint32_t *more_slots = calloc(wanted * 2, sizeof *slots);
  if (!more_places || !more_nodes || !more_slots) return free(more_slots), false;
  free(slots);
  slots = more_slots;
  capacity = wanted;
  for (uint32_t i = 1; i < count; i++) *slot_of(&places[i]) = i;
  return true;
}

/* The node of `place`, made when it is new; without memory for it, its caller's. */
static uint32_t node_of(const struct place *place) {
  if (count >= capacity && !grow()) return place->parent;
  uint32_t *slot = slot_of(place);
  if (*slot) return *slot;
  places[count] = *place;
  nodes[count] = (struct stacks_node){.parent = place->parent,
                                      .line = line_of_address((void *)place->code, (int)place->offset),
                                      .file = copy_text(pointer_at(place->code, layout.code_filename)),
                                      .function = copy_text(pointer_at(place->code, layout.code_qualname))};
  return *slot = count++;
}

/* As CPython's own _PyFrame_IsIncomplete: a frame before its first traceable instruction is none that Python tells. So
 * are those that the interpreter puts under `__init__` where an object is made often (3.13 on): of no file and no line. */
static bool is_programs(const char *frame, const char *code, const char *instruction) {
  enum { GENERATOR = 1, INSTRUCTION_BYTES = 2 };
  int32_t first = *(const int32_t *)(code + layout.code_first_traceable);
  return *(frame + layout.frame_owner) == GENERATOR ||
         instruction >= code + layout.code_instructions + (intptr_t)first * INSTRUCTION_BYTES;
}

static uint32_t node_of_thread(void *thread) {
  const char *frame = thread ? pointer_at(thread, layout.thread_frame) : NULL;
  if (frame && layout.cframe_frame >= 0) frame = pointer_at(frame, layout.cframe_frame);
  struct place stack[DEEPEST];
  int depth = 0;
  for (; frame && depth < DEEPEST; frame = pointer_at(frame, layout.frame_previous)) {
    if (*(frame + layout.frame_owner) >= layout.first_inner_owner) continue;
    /* Where stack references are tagged (3.14 on), the lowest bits are not the address's. */
    const char *code = (const char *)((uintptr_t)pointer_at(frame, layout.frame_code) & ~(uintptr_t)7);
    const char *instruction = pointer_at(frame, layout.frame_instruction);
    if (!is_programs(frame, code, instruction)) continue;
    stack[depth++] = (struct place){.code = code,
                                    .identity = identity_of(code),
                                    .offset = (uint32_t)(instruction - (code + layout.code_instructions))};
  }
  uint32_t node = 0;
  pthread_mutex_lock(&lock);
  while (depth--) {
    stack[depth].parent = node;
    node = node_of(&stack[depth]);
  }
  pthread_mutex_unlock(&lock);
  return node;
}

uint32_t stacks_here(void) {
  return atomic_load_explicit(&is_following, memory_order_acquire) ? node_of_thread(thread_state()) : 0;
}

/* ---- another thread's */

static void *watched;

void stacks_watch(void) { watched = atomic_load(&is_following) ? thread_state() : NULL; }

const char *stacks_watched(void) {
  static char text[1 << 14];
  struct stacks_node found;
  size_t end = 0;
  text[0] = 0;
  if (!watched || !atomic_load(&is_following)) return text;
  for (uint32_t node = node_of_thread(watched); stacks_read(node, &found); node = found.parent) {
    int length = snprintf(text + end, sizeof text - end, "%s\t%d\t%s\n", found.file, found.line, found.function);
    if (length < 0 || end + (size_t)length >= sizeof text) return text[end] = 0, text;
    end += (size_t)length;
  }
  return text;
}

/* ---- the Python side */

bool stacks_follow(const struct stacks_layout *wanted) {
  layout = *wanted;
  *(void **)&thread_state = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
  *(void **)&line_of_address = dlsym(RTLD_DEFAULT, "PyCode_Addr2Line");
  *(void **)&text_length = dlsym(RTLD_DEFAULT, "PyUnicode_GetLength");
  *(void **)&text_character = dlsym(RTLD_DEFAULT, "PyUnicode_ReadChar");
  *(void **)&hash_of = dlsym(RTLD_DEFAULT, "PyObject_Hash");
  bool is_possible = thread_state && line_of_address && text_length && text_character && hash_of;
  atomic_store_explicit(&is_following, is_possible, memory_order_release);
  return is_possible;
}

void stacks_stop(void) { atomic_store(&is_following, false); }

bool stacks_read(uint32_t node, struct stacks_node *out) {
  pthread_mutex_lock(&lock);
  bool is_known = node && node < count;
  if (is_known) *out = nodes[node];
  pthread_mutex_unlock(&lock);
  return is_known;
}
