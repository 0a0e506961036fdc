/* libcuda: modules and libraries of code, and their functions and variables.
 *
 * Code is not read: a function is a name, whether the image has it or not. Of a cubin (ELF) the symbols give the size of each
 * variable is; the variables of an image are memory of the GPU where they fill a page or more, and smaller ones lie in what
 * the size of the context covers.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

API int cuModuleGetLoadingMode(int *mode) {
  enum { LAZY = 2 };
  *mode = LAZY;
  return CUDA_SUCCESS;
}

struct function {
  struct module *module;
  struct function *next;
  char name[];
};
struct variable {
  char *name;
  uint64_t offset, size;
};
struct module {
  struct function *functions;
  struct variable *variables;
  size_t variable_count, kernel_count;
  uint64_t address, size; /* of the variables */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what a cubin's symbols contain. An image has no size of its own, so the headers are believed. */

static bool is_cubin(const void *image) {
  enum { CUDA_MACHINE = 190 };
  const Elf64_Ehdr *header = image;
  return image && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == ELFCLASS64 &&
         header->e_machine == CUDA_MACHINE && header->e_shoff && header->e_shentsize == sizeof(Elf64_Shdr);
}

static void read_symbol(struct module *module, const char *image, const Elf64_Shdr *sections, const Elf64_Sym *symbol,
                        const char *names) {
  int kind = ELF64_ST_TYPE(symbol->st_info);
  if (kind == STT_FUNC) module->kernel_count++;
  if (kind != STT_OBJECT || !symbol->st_size || symbol->st_shndx >= ((const Elf64_Ehdr *)image)->e_shnum) return;
  uint32_t type = sections[symbol->st_shndx].sh_type;
  if (type != SHT_NOBITS && type != SHT_PROGBITS) return;
  struct variable *grown = realloc(module->variables, (module->variable_count + 1) * sizeof *grown);
  if (!grown) return;
  module->variables = grown;
  grown[module->variable_count++] = (struct variable){strdup(names + symbol->st_name), module->size, symbol->st_size};
  module->size += (symbol->st_size + 255) & ~(uint64_t)255;
}

static void read_cubin(struct module *module, const char *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header->e_shnum) continue;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(image + sections[i].sh_offset);
    const char *names = image + sections[sections[i].sh_link].sh_offset;
    for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++)
      read_symbol(module, image, sections, &symbols[n], names);
  }
}

/* ---- modules, libraries */

API int cuModuleUnload(struct module *module) {
  if (!module) return CUDA_INVALID_HANDLE;
  for (struct function *next, *function = module->functions; function; function = next) {
    next = function->next;
    free(function);
  }
  for (size_t i = 0; i < module->variable_count; i++) free(module->variables[i].name);
  if (module->address && !card_free(module->address)) card_unreserve(module->address, module->size);
  free(module->variables);
  card_drop_handle(module);
  return CUDA_SUCCESS;
}
API int cuModuleLoadData(struct module **out, const void *image) {
  struct module *module = card_new_handle(sizeof *module);
  *out = module;
  if (!module) return CUDA_OUT_OF_MEMORY;
  if (is_cubin(image)) read_cubin(module, image);
  if (!module->size) return CUDA_SUCCESS;
  module->address = module->size >= PAGE_BYTES ? card_allocate(card_current(), module->size)
                                               : card_reserve(card_current(), module->size);
  if (module->address) return CUDA_SUCCESS;
  cuModuleUnload(module);
  *out = NULL;
  return CUDA_OUT_OF_MEMORY;
}
API int cuModuleLoadDataEx(struct module **module, const void *image, unsigned count, int *options, void **values) {
  (void)count, (void)options, (void)values;
  return cuModuleLoadData(module, image);
}
API int cuModuleLoadFatBinary(struct module **module, const void *image) { return cuModuleLoadData(module, image); }
API int cuModuleLoad(struct module **module, const char *path) {
  (void)path;
  return cuModuleLoadData(module, NULL);
}
API int cuModuleGetFunction(struct function **out, struct module *module, const char *name) {
  if (!module) return CUDA_INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  struct function *function = module->functions;
  while (function && strcmp(function->name, name) != 0) function = function->next;
  if (!function && (function = malloc(sizeof *function + strlen(name) + 1))) {
    function->module = module;
    function->next = module->functions;
    strcpy(function->name, name);
    module->functions = function;
  }
  pthread_mutex_unlock(&lock);
  *out = function;
  return function ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuModuleGetGlobal_v2(uint64_t *address, size_t *size, struct module *module, const char *name) {
  static const size_t UNKNOWN_BYTES = 0; /* of an image that is not a cubin */
  for (size_t i = 0; module && i < module->variable_count; i++) {
    if (strcmp(module->variables[i].name, name) != 0) continue;
    if (address) *address = module->address + module->variables[i].offset;
    if (size) *size = module->variables[i].size;
    return CUDA_SUCCESS;
  }
  if (!module || module->variable_count) return CUDA_NOT_FOUND;
  pthread_mutex_lock(&lock);
  if (!module->address) module->address = card_reserve(card_current(), module->size = PAGE_BYTES);
  pthread_mutex_unlock(&lock);
  if (size) *size = UNKNOWN_BYTES;
  if (address) *address = module->address;
  return CUDA_SUCCESS;
}
API int cuModuleGetFunctionCount(unsigned *count, struct module *module) {
  *count = (unsigned)module->kernel_count;
  return CUDA_SUCCESS;
}
API int cuLibraryLoadData(struct module **library, const void *code, void *jit, void **jit_values, unsigned jit_count,
                          void *options, void **values, unsigned count) {
  (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  return cuModuleLoadData(library, code);
}
API int cuLibraryLoadFromFile(struct module **library, const char *path) { return cuModuleLoad(library, path); }
API int cuLibraryUnload(struct module *library) { return cuModuleUnload(library); }
API int cuLibraryGetKernel(struct function **kernel, struct module *library, const char *name) {
  return cuModuleGetFunction(kernel, library, name);
}
API int cuLibraryGetModule(struct module **module, struct module *library) {
  *module = library;
  return library ? CUDA_SUCCESS : CUDA_INVALID_HANDLE;
}
API int cuLibraryGetGlobal(uint64_t *address, size_t *size, struct module *library, const char *name) {
  return cuModuleGetGlobal_v2(address, size, library, name);
}
API int cuLibraryGetManaged(uint64_t *address, size_t *size, struct module *library, const char *name) {
  return cuModuleGetGlobal_v2(address, size, library, name);
}
API int cuLibraryGetKernelCount(unsigned *count, struct module *library) {
  return cuModuleGetFunctionCount(count, library);
}
API int cuKernelGetFunction(struct function **function, struct function *kernel) {
  *function = kernel;
  return CUDA_SUCCESS;
}
API int cuKernelGetLibrary(struct module **library, struct function *kernel) {
  *library = kernel->module;
  return CUDA_SUCCESS;
}
API int cuFuncGetModule(struct module **module, struct function *function) {
  return cuKernelGetLibrary(module, function);
}
API int cuFuncGetName(const char **name, struct function *function) {
  *name = function->name;
  return CUDA_SUCCESS;
}
API int cuKernelGetName(const char **name, struct function *kernel) { return cuFuncGetName(name, kernel); }
API int cuFuncIsLoaded(int *loaded, struct function *function) {
  (void)function;
  *loaded = 1;
  return CUDA_SUCCESS;
}

/* ---- linking: the result is as empty as an image */

API int cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
  (void)count, (void)options, (void)values;
  *state = card_new_handle(sizeof(Elf64_Ehdr));
  return *state ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
API int cuLinkComplete(void *state, void **image, size_t *size) {
  *image = state;
  if (size) *size = 16;
  return CUDA_SUCCESS;
}
API int cuLinkDestroy(void *state) {
  card_drop_handle(state);
  return CUDA_SUCCESS;
}
ACCEPTS(cuLinkAddData_v2)
ACCEPTS(cuLinkAddFile_v2)

/* ---- functions */

API int cuFuncGetAttribute(int *value, int attribute, void *function) {
  enum {
    MAX_THREADS = 0,
    SHARED = 1,
    CONSTANT = 2,
    LOCAL = 3,
    REGISTERS = 4,
    PTX = 5,
    BINARY = 6,
    MAX_DYNAMIC_SHARED = 8
  };
  const int64_t *figure = card_get(card_current())->figure;
  (void)function;
  *value = attribute == MAX_THREADS                  ? 1024
           : attribute == REGISTERS                  ? 32
           : attribute == PTX || attribute == BINARY ? code_version(card_get(card_current()))
           : attribute == MAX_DYNAMIC_SHARED         ? (int)figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES]
                                                     : 0;
  return CUDA_SUCCESS;
}
ACCEPTS(cuFuncSetSharedMemConfig)
ACCEPTS(cuKernelSetAttribute)
ACCEPTS(cuKernelSetCacheConfig)
ACCEPTS(cuFuncSetAttribute)
ACCEPTS(cuFuncSetCacheConfig)
ACCEPTS(cuFuncLoad) API int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  (void)device;
  return cuFuncGetAttribute(value, attribute, kernel);
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block_threads, size_t shared) {
  (void)function;
  *blocks = resident_blocks(card_get(card_current()), block_threads, shared);
  return CUDA_SUCCESS;
}
API int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *config) {
  (void)function, (void)config;
  *clusters = (int)card_get(card_current())->figure[CARD_SM_COUNT];
  return CUDA_SUCCESS;
}
/* The largest block that the registers of a function allow is the GPU's; the smallest grid that fills the GPU. */
API int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *function, size_t (*shared_of)(int), size_t shared,
                                         int limit) {
  const struct card *card = card_get(card_current());
  *block = limit > 0 && limit < 1024 ? limit : 1024;
  int resident = resident_blocks(card, *block, shared_of ? shared_of(*block) : shared);
  (void)function;
  *grid = (resident > 0 ? resident : 1) * (int)card->figure[CARD_SM_COUNT];
  return CUDA_SUCCESS;
}
API int cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *function, size_t (*shared_of)(int),
                                                  size_t shared, int limit, unsigned flags) {
  (void)flags;
  return cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, shared, limit);
}
LAUNCHES(cuLaunchCooperativeKernelMultiDevice)
LAUNCHES(cuLaunchKernel)
LAUNCHES(cuLaunchKernelEx)
LAUNCHES(cuLaunchCooperativeKernel) ACCEPTS(cuTensorMapEncodeTiled) ACCEPTS(cuTensorMapEncodeIm2col)
