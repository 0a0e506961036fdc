/* Which Python line asked: the stack of the calling thread as one number, without the interpreter's lock.
 *
 * Asking Python for its frames makes an object for each, which costs microseconds and moves the moments at which garbage
 * is collected, and with them the script's memory. Here the interpreter's own frames are read where they are: a thread
 * that is inside C code does not change its frames. Stacks that share callers share nodes of one tree, so that a stack
 * seen before costs no memory.
 */
#ifndef ULLAGE_STACKS_H
#define ULLAGE_STACKS_H

#include <stdbool.h>
#include <stdint.h>

#define ULLAGE_API __attribute__((visibility("default")))

/* Where CPython keeps what is needed: byte offsets, different in every minor version (see `stacks.py`). */
struct stacks_layout {
  int32_t thread_frame; /* in PyThreadState: the current frame, or the _PyCFrame that has it */
  int32_t cframe_frame; /* in _PyCFrame: the current frame; -1: PyThreadState has it itself */
  int32_t frame_code;   /* in _PyInterpreterFrame, as the next three */
  int32_t frame_previous;
  int32_t frame_instruction;
  int32_t frame_owner;
  int32_t first_inner_owner; /* frames with this owner or a higher one belong to the interpreter, not to a program */
  int32_t code_firstlineno;  /* in PyCodeObject, as the next five */
  int32_t code_filename;
  int32_t code_qualname;
  int32_t code_linetable;
  int32_t code_first_traceable; /* which instruction is the first that belongs to the program */
  int32_t code_instructions;
};

struct stacks_node {
  uint32_t parent; /* the caller's node; 0: none */
  int32_t line;
  const char *file; /* UTF-8 */
  const char *function;
};

/* Begin to read stacks; false: this interpreter lacks a function that is needed. */
ULLAGE_API bool stacks_follow(const struct stacks_layout *layout);
ULLAGE_API void stacks_stop(void);
/* The node of the calling thread's innermost frame; 0: no Python frame, or stacks are not read. */
ULLAGE_API uint32_t stacks_here(void);
/* The stack of the thread that has called `stacks_watch`, for another thread that holds the interpreter's lock: a line for
 * each frame, innermost first, of file, line and function with tabs between them; as much as goes into 16 KiB. */
ULLAGE_API void stacks_watch(void);
ULLAGE_API const char *stacks_watched(void);
/* False: there is no such node. The texts live as long as the process. */
ULLAGE_API bool stacks_read(uint32_t node, struct stacks_node *out);

#endif
