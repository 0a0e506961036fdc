"""Libraries with CUDA code of their own: compiled by cc as nvcc would have, for either CUDA version, and by Triton."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shared.fresh import answer
from ullage.gpu.emulator import library

# What nvcc makes of `__global__ void twice(float* x)` and of a launch: a stub, and its registration when it is loaded.
SOURCE = r"""
#include <stddef.h>
struct dim3 { unsigned x, y, z; };
extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern void __cudaUnregisterFatBinary(void **);
extern void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *,
                                   int *);
extern unsigned __cudaPushCallConfiguration(struct dim3, struct dim3, size_t, void *);
extern int __cudaPopCallConfiguration(struct dim3 *, struct dim3 *, size_t *, void *);
extern int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);
extern int cudaGetLastError(void), cudaMalloc(void **, size_t), cudaFree(void *);
extern int cudaMallocManaged(void **, size_t, unsigned);
#if MAJOR >= 13
struct location { int kind, id; };
extern int cudaMemPrefetchAsync(const void *, size_t, struct location, unsigned, void *);
#else
extern int cudaMemPrefetchAsync(const void *, size_t, int, void *);
#endif
static struct { int magic, version; const void *code, *more; } wrapper = {0x466243b1, 1, 0, 0};
static void **handle;
void twice(float *x) {
  struct dim3 grid, block;
  size_t shared;
  void *stream, *arguments[] = {&x};
  if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) == 0)
    cudaLaunchKernel((const void *)twice, grid, block, arguments, shared, stream);
}
__attribute__((constructor)) static void enter(void) {
  handle = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(handle, (const char *)twice, "_Z5twicePf", "_Z5twicePf", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFatBinaryEnd(handle);
}
__attribute__((destructor)) static void leave(void) { __cudaUnregisterFatBinary(handle); }
int run(size_t size, void **kept) {
  if (cudaMalloc(kept, size)) return 1;
  struct dim3 one = {1, 1, 1};
  if (__cudaPushCallConfiguration(one, one, 0, 0) == 0) twice(*kept);
  return cudaGetLastError();
}
int let_go(void *kept) { return cudaFree(kept); }
int page(size_t size, char *last) {
  char *managed;
  if (cudaMallocManaged((void **)&managed, size, 1)) return 1;
  managed[size - 1] = 42; /* the host's own memory */
#if MAJOR >= 13
  if (cudaMemPrefetchAsync(managed, size, (struct location){1, 0}, 0, 0)) return 2;
#else
  if (cudaMemPrefetchAsync(managed, size, 0, 0)) return 2;
#endif
  *last = managed[size - 1];
  return cudaFree(managed);
}
"""


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("there is no C compiler on this machine")
    return found


@pytest.mark.parametrize("major", [12, 13])
def test_a_library_for_either_cuda_version_runs_beside_torch(major: int, compiler: str, tmp_path: Path) -> None:
    source, built = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text(SOURCE)
    runtime = library.FOLDER / str(major) / "libullage_cudart.so"
    command = [compiler, "-shared", "-fPIC", f"-DMAJOR={major}", "-o", str(built), str(source), str(runtime)]
    subprocess.run([*command, f"-Wl,--allow-shlib-undefined,-rpath-link,{library.FOLDER}"], check=True)
    needed = subprocess.run(["readelf", "-d", str(built)], check=True, capture_output=True, text=True).stdout
    assert f"libcudart.so.{major}" in needed
    told = answer(f"""
        import ctypes, ullage
        ullage.emulate("RTX 4090")
        import torch
        from ullage.gpu.emulator import library
        torch.ones(1, device="cuda")
        other = ctypes.CDLL({str(built)!r})
        free, kept, last = torch.cuda.mem_get_info()[0], ctypes.c_void_p(), ctypes.c_char()
        status = other.run(ctypes.c_size_t(64 << 20), ctypes.byref(kept))
        taken = free - torch.cuda.mem_get_info()[0]
        seen = library.outside()["libother.so"].peak_bytes
        status += other.let_go(kept)
        status += other.page(ctypes.c_size_t(8 << 20), ctypes.byref(last))
        tell([status, taken, seen, free - torch.cuda.mem_get_info()[0], last.value[0], library.unwritten_functions()])
    """)
    assert told == [0, 64 << 20, 64 << 20, 0, 42, {}]


def test_a_kernel_of_triton_is_compiled_tuned_and_launched(compiler: str, tmp_path: Path) -> None:
    """Triton builds its launcher with a C compiler."""
    script = tmp_path / "kernel.py"  # Triton reads the source of its functions
    script.write_text("""
import torch, triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 1024})], key=["count"])
@triton.jit
def twice(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

def run(x):
    y = torch.empty_like(x)
    twice[lambda config: (triton.cdiv(x.numel(), config["BLOCK"]),)](x, y, x.numel())
    return y
""")
    told = answer(
        f"""
        import sys, ullage
        ullage.emulate("RTX 4090")
        sys.path.insert(0, {str(tmp_path)!r})
        import torch, kernel
        x = torch.ones(1 << 20, device="cuda")
        before = torch.cuda.memory_allocated()
        y = kernel.run(x)
        tell([torch.cuda.memory_allocated() - before, len(kernel.twice.cache)])
        """,
        environment={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert told == [4 << 20, 1]
