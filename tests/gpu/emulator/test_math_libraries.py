"""The libraries of mathematics and of compilation through ctypes: handles, sizes, and text that the driver takes."""

from tests.gpu.emulator.test_cuda_libraries import told

LOAD = """
def library_of(name):
    return c.CDLL(str(library.FOLDER / str(major) / f"libullage_{name}.so"))
"""


def test_random_numbers_products_and_transforms_succeed_and_take_what_they_say() -> None:
    values = told(
        LOAD
        + """
curand, cublas, cufft = library_of("curand"), library_of("cublas"), library_of("cufft")
generator, handle, p = pointer(), pointer(), pointer()
assert curand.curandCreateGenerator(c.byref(generator), 100) == 0
assert cudart.cudaMalloc(c.byref(p), size(MIB)) == 0
assert curand.curandGenerateUniform(generator, p, size(1024)) == 0
assert cublas.cublasCreate_v2(c.byref(handle)) == 0
for name in ("cublasSgemm_v2", "cublasHgemmStridedBatched", "cublasZtrsm_v2_64", "cublasGemmEx_64"):
    assert getattr(cublas, name)(handle) == 0, name
assert curand.curandDestroyGenerator(generator) == 0
version = c.c_int()
assert cublas.cublasGetProperty(0, c.byref(version)) == 0
before = free()
plan, work = c.c_int(), c.c_size_t()
assert cufft.cufftEstimate1d(1 << 20, 0x29, 4, c.byref(work)) == 0
assert cufft.cufftPlan1d(c.byref(plan), 1 << 20, 0x29, 4) == 0
assert cufft.cufftExecC2C(plan, p, p, -1) == 0
taken = before - free()
assert cufft.cufftDestroy(plan) == 0
bad = cufft.cufftPlan1d(c.byref(plan), 8, 0x77, 1)
tell([version.value == major, work.value // MIB, taken // MIB, before - free(), bad, library.unwritten_functions()])
"""
    )
    assert values == [True, 32, 32, 0, 3, {}]


def test_sparse_descriptors_keep_their_shape_and_name_their_buffers() -> None:
    values = told(
        LOAD
        + """
cusparse = library_of("cusparse")
handle, matrix, vector = pointer(), pointer(), pointer()
assert cusparse.cusparseCreate(c.byref(handle)) == 0
rows, columns, elements = c.c_int64(10), c.c_int64(20), c.c_int64(30)
assert cusparse.cusparseCreateCsc(c.byref(matrix), rows, columns, elements) == 0
seen = [c.c_int64() for _ in range(3)]
assert cusparse.cusparseSpMatGetSize(matrix, *map(c.byref, seen)) == 0
wanted = c.c_size_t()
assert cusparse.cusparseDenseToSparse_bufferSize(handle, None, matrix, 0, c.byref(wanted)) == 0
cusparse.cusparseGetErrorName.restype = c.c_char_p
tell([[n.value for n in seen], wanted.value, cusparse.cusparseGetErrorName(0).decode()])
"""
    )
    assert values == [[10, 20, 30], 88, "CUSPARSE_STATUS_SUCCESS"]


def test_a_program_becomes_text_that_names_its_kernels_and_a_module() -> None:
    values = told(
        LOAD
        + """
nvrtc, nvjitlink = library_of("nvrtc"), library_of("nvJitLink")
program, module, function = pointer(), pointer(), pointer()
source = b'extern "C" __global__ void __launch_bounds__(256) scale(float *x) {}'
source += b' template<int n> __global__ void other ();'
assert nvrtc.nvrtcCreateProgram(c.byref(program), source, b"a.cu", 0, None, None) == 0
assert nvrtc.nvrtcAddNameExpression(program, b"other<3>") == 0
assert nvrtc.nvrtcCompileProgram(program, 0, None) == 0
length = c.c_size_t()
assert nvrtc.nvrtcGetPTXSize(program, c.byref(length)) == 0
text = c.create_string_buffer(length.value)
assert nvrtc.nvrtcGetPTX(program, text) == 0
lowered = c.c_char_p()
assert nvrtc.nvrtcGetLoweredName(program, b"other<3>", c.byref(lowered)) == 0
unknown = nvrtc.nvrtcGetLoweredName(program, b"other<4>", c.byref(c.c_char_p()))
assert cuda.cuModuleLoadData(c.byref(module), text) == 0
assert cuda.cuModuleGetFunction(c.byref(function), module, b"scale") == 0
entries = [line.split()[2] for line in text.value.decode().splitlines() if line.startswith(".visible")]
name = lowered.value.decode()
assert nvrtc.nvrtcDestroyProgram(c.byref(program)) == 0
link = pointer()
create = getattr(nvjitlink, f"__nvJitLinkCreate_{major}_0")
assert create(c.byref(link), 0, None) == 0
assert nvjitlink.nvJitLinkComplete(link) == 0
assert nvjitlink.nvJitLinkGetLinkedCubinSize(link, c.byref(length)) == 0
image = c.create_string_buffer(length.value)
assert nvjitlink.nvJitLinkGetLinkedCubin(link, image) == 0
assert cuda.cuModuleLoadData(c.byref(module), image) == 0
tell([entries, name, unknown, library.unwritten_functions()])
"""
    )
    assert values == [["scale()", "other()"], "other<3>", 10, {}]


def test_a_function_that_nobody_wrote_says_so_and_is_named() -> None:
    values = told(
        LOAD
        + """
handle = pointer()
statuses = [cudart.cudaGreenCtxCreate(None), library_of("cusparse").cusparseSpGEAM(None)]
statuses.append(cuda.cuGetExportTable(c.byref(handle), b"0" * 16))
tell([statuses, sorted(library.unwritten_functions())])
"""
    )
    statuses, names = values
    assert statuses == [801, 10, 801]
    assert names[0].startswith("cuda:cuGetExportTable (")
    assert names[1:] == ["cudart:cudaGreenCtxCreate", "cusparse:cusparseSpGEAM"]
