/* Hands the emulated GPU over to every child process, whatever environment and options a program starts it with.
 *
 * Child processes find the emulated GPU through environment variables, which `env -i`, `env=` of `subprocess` or a job
 * script may remove. The dynamic linker loads this library (LD_PRELOAD) into each program. When the program executes
 * another one, the functions below add the missing variables to its environment. A variable that is set, even to an
 * empty text, stays as it is. Python ignores PYTHONPATH with the options -I and -E, and does not load `sitecustomize`
 * with -S. Such a Python runs `hooks/sitecustomize.py` right before its script.
 *
 * A static program and a setuid program do not load this library.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ULLAGE_API __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char* const KEPT[] = {"ULLAGE_EMULATED_CARD", "ULLAGE_EMULATED_USE", "ULLAGE_PREDICTION", "ULLAGE_PYTHON",
                                   "ULLAGE_RUN"};
static char* kept[COUNT(KEPT)]; /* "NAME=value" */

/* Variables with a list of paths, and our path, relative to the folder of the package `ullage`. */
static const struct {
  const char *name, *path;
  bool only_if_set;
} LISTS[] = {{"LD_PRELOAD", "_child/libullage_child.so", false},
             {"PYTHONPATH", "_child/hooks", false},
             {"PATH", "gpu/emulator/nvidia_smi/bin", true}};
static char* paths[COUNT(LISTS)];

/* ---- the environment of a new program */

static size_t entry_of(char* const* environment, size_t count, const char* name) {
  size_t length = strlen(name);
  for (size_t i = 0; i < count; i++)
    if (strncmp(environment[i], name, length) == 0 && environment[i][length] == '=') return i;
  return count;
}

static bool contains(const char* list, const char* path) {
  size_t length = strlen(path);
  for (const char* found = list; (found = strstr(found, path)) != NULL; found++) {
    bool begins = found == list || found[-1] == ':' || found[-1] == ' ';
    if (begins && (found[length] == '\0' || found[length] == ':' || found[length] == ' ')) return true;
  }
  return false;
}

static size_t length_of(char* const* environment) {
  size_t count = 0;
  while (environment != NULL && environment[count] != NULL) count++;
  return count;
}

/* The functions below may run after vfork, where memory from malloc would be lost to the parent. */
static size_t bytes_for(char* const* environment) {
  size_t count = length_of(environment);
  size_t bytes = (count + COUNT(KEPT) + COUNT(LISTS) + 1) * sizeof(char*);
  for (size_t i = 0; i < COUNT(LISTS); i++) {
    size_t at = entry_of(environment, count, LISTS[i].name);
    bytes += strlen(LISTS[i].name) + (paths[i] ? strlen(paths[i]) : 0) + 3;
    bytes += at < count ? strlen(environment[at]) : 0;
  }
  return bytes;
}

static char** completed(char* const* environment, void* place) {
  size_t before = length_of(environment), count = before;
  char** result = place;
  if (before) memcpy(result, environment, before * sizeof(char*));
  bool has_any = false;
  for (size_t i = 0; i < COUNT(KEPT); i++) {
    has_any |= kept[i] != NULL;
    if (kept[i] != NULL && entry_of(environment, before, KEPT[i]) == before) result[count++] = kept[i];
  }
  char* text = (char*)(result + before + COUNT(KEPT) + COUNT(LISTS) + 1);
  for (size_t i = 0; has_any && i < COUNT(LISTS); i++) {
    const char* name = LISTS[i].name;
    size_t at = entry_of(environment, before, name);
    const char* value = at < before ? environment[at] + strlen(name) + 1 : "";
    if (paths[i] == NULL || (at == before && LISTS[i].only_if_set) || contains(value, paths[i])) continue;
    result[at < before ? at : count++] = text;
    text += sprintf(text, *value ? "%s=%s:%s" : "%s=%s", name, paths[i], value) + 1;
  }
  result[count] = NULL;
  return result;
}

#define COMPLETE(environment) environment = completed(environment, alloca(bytes_for(environment)))

/* ---- the functions that execute a program */

static int (*real_execve)(const char*, char* const*, char* const*);
static int (*real_execvpe)(const char*, char* const*, char* const*);
static int (*real_fexecve)(int, char* const*, char* const*);
typedef int spawn_function(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                           char* const*, char* const*);
static spawn_function *real_posix_spawn, *real_posix_spawnp;

static void find_functions(void) {
  real_execve = dlsym(RTLD_NEXT, "execve");
  real_execvpe = dlsym(RTLD_NEXT, "execvpe");
  real_fexecve = dlsym(RTLD_NEXT, "fexecve");
  real_posix_spawn = dlsym(RTLD_NEXT, "posix_spawn");
  real_posix_spawnp = dlsym(RTLD_NEXT, "posix_spawnp");
}

/* Another library's constructor may execute a program before ours has run. */
#define REAL(name) (real_##name ? real_##name : (find_functions(), real_##name))

ULLAGE_API int execve(const char* path, char* const* arguments, char* const* environment) {
  COMPLETE(environment);
  return REAL(execve)(path, arguments, environment);
}

ULLAGE_API int execvpe(const char* file, char* const* arguments, char* const* environment) {
  COMPLETE(environment);
  return REAL(execvpe)(file, arguments, environment);
}

ULLAGE_API int fexecve(int file, char* const* arguments, char* const* environment) {
  COMPLETE(environment);
  return REAL(fexecve)(file, arguments, environment);
}

ULLAGE_API int execveat(int folder, const char* path, char* const* arguments, char* const* environment, int flags) {
  COMPLETE(environment);
  return (int)syscall(SYS_execveat, folder, path, arguments, environment, flags);
}

ULLAGE_API int execv(const char* path, char* const* arguments) { return execve(path, arguments, environ); }

ULLAGE_API int execvp(const char* file, char* const* arguments) { return execvpe(file, arguments, environ); }

/* The arguments of execl, execlp and execle up to NULL, as an array on the stack. */
#define ARGUMENTS(array, first, list)                  \
  va_list list;                                        \
  size_t count_ = 1;                                   \
  va_start(list, first);                               \
  while (va_arg(list, char*) != NULL) count_++;        \
  va_end(list);                                        \
  char** array = alloca((count_ + 1) * sizeof(char*)); \
  array[0] = (char*)first;                             \
  va_start(list, first);                               \
  for (size_t i_ = 1; i_ <= count_; i_++) array[i_] = va_arg(list, char*)

ULLAGE_API int execl(const char* path, const char* first, ...) {
  ARGUMENTS(arguments, first, list);
  va_end(list);
  return execve(path, arguments, environ);
}

ULLAGE_API int execlp(const char* file, const char* first, ...) {
  ARGUMENTS(arguments, first, list);
  va_end(list);
  return execvpe(file, arguments, environ);
}

ULLAGE_API int execle(const char* path, const char* first, ...) {
  ARGUMENTS(arguments, first, list);
  char* const* environment = va_arg(list, char* const*);
  va_end(list);
  return execve(path, arguments, environment);
}

ULLAGE_API int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  COMPLETE(environment);
  return REAL(posix_spawn)(process, path, actions, attributes, arguments, environment);
}

ULLAGE_API int posix_spawnp(pid_t* process, const char* file, const posix_spawn_file_actions_t* actions,
                            const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  COMPLETE(environment);
  return REAL(posix_spawnp)(process, file, actions, attributes, arguments, environment);
}

/* ---- a Python that does not load `sitecustomize` from PYTHONPATH */

static bool ignores_hooks(void) {
  char words[4096];
  int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? -1 : read(file, words, sizeof words - 1);
  if (file >= 0) close(file);
  if (length <= 0) return false;
  words[length] = '\0';
  for (char* word = words + strlen(words) + 1; word < words + length; word += strlen(word) + 1) {
    if (word[0] != '-' || word[1] == '\0') return false;
    for (char* letter = word + 1; *letter != '\0' && word[1] != '-'; letter++) {
      if (strchr("IES", *letter)) return true;
      if (strchr("cm", *letter)) return false;
      if (strchr("WX", *letter)) { /* with a value, which may be the next word */
        if (letter[1] == '\0') word += strlen(word) + 1;
        break;
      }
    }
  }
  return false;
}

/* An audit hook (PySys_AddAuditHook), called when the interpreter is about to run its script, module or command. */
static int run_hooks(const char* event, void* arguments, void* unused) {
  static bool has_run;
  (void)arguments, (void)unused;
  if (has_run || strncmp(event, "cpython.run_", strlen("cpython.run_")) != 0) return 0;
  has_run = true;
  int (*run)(const char*, void*) = (int (*)(const char*, void*))dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags");
  const char* path = paths[1];
  if (run == NULL || path == NULL) return 0;
  static const char BEGIN[] =
      "(lambda path: exec(compile(open(path, 'rb').read(), path, 'exec'), {'__name__': "
      "'ullage_hooks', '__file__': path}))(__import__('os').fsdecode(b'";
  static const char END[] = "/sitecustomize.py'))\n";
  char *code = malloc(sizeof BEGIN + 4 * strlen(path) + sizeof END), *next = code;
  if (code == NULL) return 0;
  next += sprintf(next, "%s", BEGIN);
  for (const char* letter = path; *letter != '\0'; letter++) next += sprintf(next, "\\x%02x", (unsigned char)*letter);
  sprintf(next, "%s", END);
  run(code, NULL);
  free(code);
  return 0;
}

/* ---- the start of a program */

/* Keep the present values of the variables. Called again when the process has begun to emulate a GPU. */
ULLAGE_API void ullage_child_keep(void) {
  for (size_t i = 0; i < COUNT(KEPT); i++) {
    const char* value = getenv(KEPT[i]);
    char* text = NULL;
    if (value == NULL || asprintf(&text, "%s=%s", KEPT[i], value) < 0) continue;
    kept[i] = text; /* the former text may be in use by another thread */
  }
}

__attribute__((constructor)) static void begin(void) {
  find_functions();
  Dl_info here;
  if (dladdr((void*)&KEPT, &here) == 0) return;
  const char* own = strstr(here.dli_fname, LISTS[0].path);
  for (const char* next = own; next != NULL; next = strstr(next + 1, LISTS[0].path)) own = next; /* the last one */
  if (own == NULL) return;
  int folder = (int)(own - here.dli_fname);
  for (size_t i = 0; i < COUNT(LISTS); i++) {
    char* text = NULL;
    if (asprintf(&text, "%.*s%s", folder, here.dli_fname, LISTS[i].path) >= 0) paths[i] = text;
  }
  ullage_child_keep();
  int (*add)(int (*)(const char*, void*, void*), void*) =
      (int (*)(int (*)(const char*, void*, void*), void*))dlsym(RTLD_DEFAULT, "PySys_AddAuditHook");
  if (add != NULL && (kept[0] != NULL || kept[2] != NULL) && ignores_hooks()) add(run_hooks, NULL);
}
