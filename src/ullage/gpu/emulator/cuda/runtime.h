/* What the runtime's files share with the driver's. */
#ifndef ULLAGE_RUNTIME_H
#define ULLAGE_RUNTIME_H

#include "card.h"

#define API ULLAGE_API
enum {
  CUDA_SUCCESS = 0,
  CUDA_INVALID_VALUE = 1,
  CUDA_OUT_OF_MEMORY = 2,
  CUDA_NO_DEVICE = 100,
  CUDA_INVALID_DEVICE = 101,
  CUDA_INVALID_HANDLE = 400,
  CUDA_NOT_FOUND = 500,
  CUDA_PEER_ALREADY = 704,
  CUDA_HOST_REGISTERED = 712,
  CUDA_HOST_NOT_REGISTERED = 713,
  CUDA_NOT_SUPPORTED = 801,
  CUDA_CAPTURE_INVALIDATED = 901,
};

struct dim3 {
  unsigned x, y, z;
};
struct launch_config {
  struct dim3 grid, block;
  size_t shared;
  void *stream, *attributes;
  unsigned attribute_count;
};

/* What was captured, or put together by hand. */
struct graph {
  uint64_t id, nodes, launches_before;
  int64_t sent_bytes, sent_before; /* what each launch sends; what was sent when the capture began */
  struct stream *origin;
};

/* Sets what cudaGetLastError answers, and returns it. */
int cuda_fail(int status);
int runtime_copy(void *destination, const void *source, size_t size);

struct extent {
  size_t width, height, depth;
};
struct pitched {
  void *address;
  size_t pitch, width, height;
};
/* struct cudaMemLocation, CUmemLocation */
enum { ON_DEVICE = 1, ON_HOST = 2 };
struct location {
  int type, id;
};
/* The device that memory is to go to; -1: the host. */
static inline int place_of(struct location location) { return location.type == ON_DEVICE ? location.id : -1; }

/* The shared object that called the function that contains it; see outside.c. */
#define CALLER __builtin_return_address(0)

/* memory_attributes.c: of managed memory, cudaMemRangeGetAttribute and its twin of the driver. */
bool managed_attribute(void *out, size_t size, int attribute, const void *address);

/* A function that the other library of the two has, libcudart or libcuda, under another name. Arguments that are not given are
 * read off the stack and not used. */
long forward(long (**target)(long, long, long, long, long, long, long, long, long), const char *library,
             const char *name, const long argument[9]);
#define FORWARD(library, name, to)                                                        \
  API long name(long a, long b, long c, long d, long e, long f, long g, long h, long i) { \
    static long (*target)(long, long, long, long, long, long, long, long, long);          \
    return forward(&target, library, #to, (const long[9]){a, b, c, d, e, f, g, h, i});    \
  }

/* device.c: CUdevice_attribute (the runtime's numbers are the same), how many blocks fit on a multiprocessor, and which
 * compiled code the GPU would run. */
enum { ATTRIBUTE_CLOCK_KHZ = 13, ATTRIBUTE_MEMORY_CLOCK_KHZ = 36, ATTRIBUTE_MEMORY_BUS_WIDTH = 37 };
int device_attribute(const struct card *card, int device, int attribute);
int resident_blocks(const struct card *card, int block_threads, size_t shared);
int code_version(const struct card *card); /* 86 for code compiled for sm_86 */

/* struct cudaDeviceProp as the toolkit of this major version lays it out. */
struct device_properties {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
#if ULLAGE_CUDA_MAJOR < 13
  int clockRate;
#endif
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
#if ULLAGE_CUDA_MAJOR < 13
  int deviceOverlap;
#endif
  int multiProcessorCount;
#if ULLAGE_CUDA_MAJOR < 13
  int kernelExecTimeoutEnabled;
#endif
  int integrated;
  int canMapHostMemory;
#if ULLAGE_CUDA_MAJOR < 13
  int computeMode;
#endif
  int maxTexture1D;
  int maxTexture1DMipmap;
#if ULLAGE_CUDA_MAJOR < 13
  int maxTexture1DLinear;
#endif
  int maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2];
  int maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap;
  int maxTexture1DLayered[2], maxTexture2DLayered[3], maxTextureCubemapLayered[2];
  int maxSurface1D, maxSurface2D[2], maxSurface3D[3], maxSurface1DLayered[2], maxSurface2DLayered[3];
  int maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int tccDriver;
  int asyncEngineCount;
  int unifiedAddressing;
#if ULLAGE_CUDA_MAJOR < 13
  int memoryClockRate;
#endif
  int memoryBusWidth;
  int l2CacheSize;
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int isMultiGpuBoard;
  int multiGpuBoardGroupID;
  int hostNativeAtomicSupported;
#if ULLAGE_CUDA_MAJOR < 13
  int singleToDoublePrecisionPerfRatio;
#endif
  int pageableMemoryAccess;
  int concurrentManagedAccess;
  int computePreemptionSupported;
  int canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
#if ULLAGE_CUDA_MAJOR < 13
  int cooperativeMultiDeviceLaunch;
#endif
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables;
  int directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported;
  int sparseCudaArraySupported;
  int hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported;
  int memoryPoolsSupported;
  int gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingCudaArraySupported;
  int ipcEventSupported;
  int clusterLaunch;
  int unifiedFunctionPointers;
#if ULLAGE_CUDA_MAJOR < 13
  int reserved[63];
#else
  int deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
  unsigned gpuPciDeviceID, gpuPciSubsystemID;
  int hostNumaMultinodeIpcSupported;
  int reserved[56];
#endif
};

#endif
