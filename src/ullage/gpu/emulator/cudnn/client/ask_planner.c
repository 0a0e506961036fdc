/* Queries to cuDNN. Its process is started at the first query and is not a child of this one, so that the user's `wait`
 * does not see it; it ends when this process does. A query that crashes it costs one restart, and that query's answer;
 * after three crashes it is not started again. */
#define _GNU_SOURCE
#include "ask_planner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Of queries to cuDNN. An estimate loads no cuDNN, so it is possible when cuDNN is no longer used. */
enum { MOST_DEATHS = 3, START_MS = 30000, PATIENCE_MS = 120000, LARGEST_REPLY = 16 << 20 };

static char *python, *code, *root, *setup;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int line = -1; /* the socket; a fork of this process has its own */
static ino_t line_inode;
static int deaths;

/* Whether the number is the socket's still: the user may close any, and open something else under it. */
static bool is_ours(void) {
  struct stat about;
  return line >= 0 && fstat(line, &about) == 0 && S_ISSOCK(about.st_mode) && about.st_ino == line_inode;
}
static void hang_up(void) {
  if (is_ours()) close(line);
  line = -1;
}

static void forget_in_fork(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  hang_up();
}

bool cudnn_planner_configure(const char *python_, const char *code_, const char *root_, const char *setup_) {
  python = strdup(python_), code = strdup(code_), root = strdup(root_), setup = strdup(setup_);
  return python && code && root && setup && pthread_atfork(NULL, NULL, forget_in_fork) == 0;
}

/* ---- a question as text */

struct text {
  char *start;
  size_t length, room;
  bool failed;
};

static void append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct text *text, const char *format, ...) {
  char piece[64];
  va_list values;
  va_start(values, format);
  int length = vsnprintf(piece, sizeof piece, format, values);
  va_end(values);
  if (text->length + (size_t)length + 1 > text->room) {
    size_t room = text->room ? 2 * text->room : 4096;
    char *more = realloc(text->start, room);
    if (!more) {
      text->failed = true;
      return;
    }
    text->start = more;
    text->room = room;
  }
  memcpy(text->start + text->length, piece, (size_t)length + 1);
  text->length += (size_t)length;
}

enum { MOST_LINES = 2048 };
struct writer {
  struct text text;
  const struct descriptor *written[MOST_LINES];
  int lines;
};

static int write_descriptor(struct writer *writer, const struct descriptor *descriptor);

static void append_value(struct writer *writer, const struct attribute *attribute, int64_t i, const int *children) {
  const char *separator = i ? "," : "";
  switch (attribute->type == TYPE_DESCRIPTOR ? 0 : size_of(attribute->type)) {
    case 0: append(&writer->text, "%s%d", separator, children[i]); break;
    case 1: append(&writer->text, "%s%d", separator, ((const uint8_t *)attribute->values)[i]); break;
    case 4: append(&writer->text, "%s%" PRId32, separator, ((const int32_t *)attribute->values)[i]); break;
    case 8: append(&writer->text, "%s%" PRId64, separator, ((const int64_t *)attribute->values)[i]); break;
    default: {
      const int64_t *pair = (const int64_t *)attribute->values + 2 * i;
      append(&writer->text, "%s%" PRId64 ",%" PRId64, separator, pair[0], pair[1]);
    }
  }
}

/* The number of a descriptor's line, after those of its children; -1: too many. */
static int write_descriptor(struct writer *writer, const struct descriptor *descriptor) {
  if (!descriptor) return -1;
  for (int i = 0; i < writer->lines; i++)
    if (writer->written[i] == descriptor) return i;
  int total = 0;
  for (int i = 0; i < descriptor->count; i++)
    if (descriptor->attributes[i].type == TYPE_DESCRIPTOR) total += (int)descriptor->attributes[i].count;
  int *children = malloc(sizeof *children * (size_t)(total + 1)), *next = children;
  if (!children) return -1;
  for (int i = 0; i < descriptor->count; i++) {
    const struct attribute *attribute = &descriptor->attributes[i];
    for (int64_t j = 0; attribute->type == TYPE_DESCRIPTOR && j < attribute->count; j++) {
      *next = write_descriptor(writer, ((struct descriptor **)attribute->values)[j]);
      if (*next++ < 0) writer->text.failed = true;
    }
  }
  next = children;
  append(&writer->text, "%d", descriptor->kind);
  for (int i = 0; i < descriptor->count; i++) {
    const struct attribute *attribute = &descriptor->attributes[i];
    if (attribute->type == TYPE_HANDLE || attribute->type == TYPE_POINTER) continue;
    append(&writer->text, " %d:%d:", attribute->name, attribute->type);
    for (int64_t j = 0; j < attribute->count; j++) append_value(writer, attribute, j, next);
    if (attribute->type == TYPE_DESCRIPTOR) next += attribute->count;
  }
  append(&writer->text, "\n");
  free(children);
  if (writer->lines == MOST_LINES) return -1;
  writer->written[writer->lines] = descriptor;
  return writer->lines++;
}

static char *text_of(const char *wanted, const struct descriptor *question, size_t *length) {
  struct writer *writer = calloc(1, sizeof *writer);
  if (!writer) return NULL;
  if (wanted) append(&writer->text, "%s\n", wanted);
  bool written = write_descriptor(writer, question) >= 0 && !writer->text.failed;
  char *text = writer->text.start;
  *length = writer->text.length;
  free(writer);
  if (written) return text;
  free(text);
  return NULL;
}

uint64_t planner_hash(const struct descriptor *graph) {
  size_t length = 0;
  char *text = text_of(NULL, graph, &length);
  uint64_t hash = 14695981039346656037u; /* FNV-1a */
  for (size_t i = 0; text && i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
  free(text);
  return hash;
}

/* ---- the line */

static bool send_all(const void *start_, size_t length) {
  for (const char *at = start_; length;) {
    ssize_t sent = send(line, at, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, length -= (size_t)sent;
  }
  return true;
}

static bool receive_all(void *start_, size_t length, int patience_ms) {
  for (char *at = start_; length;) {
    struct pollfd wait = {.fd = line, .events = POLLIN};
    int ready = poll(&wait, 1, patience_ms);
    if (ready < 0 && errno == EINTR) continue;
    ssize_t got = ready > 0 ? recv(line, at, length, 0) : 0;
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, length -= (size_t)got;
  }
  return true;
}

/* ---- the process */

/* Its starter: shares this process's memory while the caller waits for it, and ends at once. Without an exit signal no
 * handler and no `wait` of the user's notices it; what it has started is not a child of this process. */
struct starter {
  char **arguments;
  const posix_spawn_file_actions_t *actions;
  const posix_spawnattr_t *attributes;
  int status;
};
static int start_planner(void *starter_) {
  struct starter *starter = starter_;
  pid_t started;
  starter->status = posix_spawn(&started, python, starter->actions, starter->attributes, starter->arguments, environ);
  _exit(0);
}

static int run_starter(struct starter *starter) {
  enum { STACK_BYTES = 256 << 10 };
  char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return errno;
  pid_t pid = clone(start_planner, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, starter);
  int status = pid < 0 ? errno : starter->status;
  while (pid > 0 && waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) {
  }
  munmap(stack, STACK_BYTES);
  return status;
}

/* Above the standard streams, whose numbers may be free. */
static int lift(int number) {
  int lifted = number >= 0 ? fcntl(number, F_DUPFD_CLOEXEC, 3) : -1;
  if (number >= 0) close(number);
  return lifted;
}

static bool start(void) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  ends[0] = lift(ends[0]), ends[1] = lift(ends[1]);
  struct stat about;
  if (ends[0] < 0 || ends[1] < 0 || fstat(ends[0], &about) != 0) {
    if (ends[0] >= 0) close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
    return false;
  }
  char client[16];
  snprintf(client, sizeof client, "%d", (int)getpid());
  /* -I -S: nothing of the user's environment, and no site packages, which the planner does not need. */
  char *arguments[] = {python, "-I", "-S", "-c", code, root, setup, client, NULL};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_RDWR, 0);
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  int status = run_starter(&(struct starter){arguments, &actions, &attributes, 0});
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  line = ends[0];
  line_inode = about.st_ino;
  char hello;
  if (status == 0 && receive_all(&hello, 1, START_MS)) return true;
  hang_up();
  return false;
}

static char *exchange(const char *question, size_t length) {
  uint32_t size = (uint32_t)length;
  if (!send_all(&size, sizeof size) || !send_all(question, length) || !receive_all(&size, sizeof size, PATIENCE_MS))
    return NULL;
  char *reply = size <= LARGEST_REPLY ? malloc((size_t)size + 1) : NULL;
  if (reply && receive_all(reply, size, PATIENCE_MS)) {
    reply[size] = 0;
    return reply;
  }
  free(reply);
  return NULL;
}

char *planner_ask(const char *wanted, const struct descriptor *question) {
  size_t length = 0;
  char *text = python ? text_of(wanted, question, &length) : NULL, *reply = NULL;
  if (!text) return NULL;
  pthread_mutex_lock(&lock);
  int most = strcmp(wanted, "estimate") == 0 ? 2 * MOST_DEATHS : MOST_DEATHS;
  if (!is_ours()) line = -1;
  if (deaths < most && (line >= 0 || start())) {
    reply = exchange(text, length);
    if (!reply) {
      hang_up();
      card_note_reason(
          ++deaths < MOST_DEATHS
              ? "cuDNN's process ended, or took more than two minutes, over a question"
              : "cuDNN's process ended three times and is not asked any more; is the installation of cuDNN whole?");
    }
  } else if (deaths < most) {
    deaths = 2 * MOST_DEATHS;
    card_note_reason("cuDNN's process could not be started");
  }
  pthread_mutex_unlock(&lock);
  free(text);
  return reply;
}
