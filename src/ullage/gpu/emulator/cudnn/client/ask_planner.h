/* The process that asks NVIDIA's cuDNN (ullage/gpu/emulator/cudnn): what torch has built goes there as text. */
#ifndef ULLAGE_CUDNN_PLANNER_H
#define ULLAGE_CUDNN_PLANNER_H

#include "descriptor.h"

/* Set by the Python side before torch is loaded: how to start the process. Without it nothing is asked. */
ULLAGE_API bool cudnn_planner_configure(const char *python, const char *code, const char *root, const char *setup);

/* Answers to a question, as `ullage/gpu/emulator/cudnn/planner.py` writes them: ended by a 0, to be freed. NULL if there is no
 * answer; the reason is recorded once. */
char *planner_ask(const char *wanted, const struct descriptor *question);

/* A graph's identity: the same for every descriptor of the same graph. */
uint64_t planner_hash(const struct descriptor *graph);

#endif
