/* libcuda: functions that the runtime has under another name. Streams, events and graphs are the same objects in both, and
 * so are error numbers. */
#include <string.h>

#include "runtime.h"

#if ULLAGE_CUDA_MAJOR < 13
#define RUNTIME "libcudart.so.12"
#else
#define RUNTIME "libcudart.so.13"
#endif
#define TWIN(name, to) FORWARD(RUNTIME, name, to)

/* ---- streams, events */

// clang-format off: a list of macros
TWIN(cuStreamCreate, cudaStreamCreateWithFlags) TWIN(cuStreamCreateWithPriority, cudaStreamCreateWithPriority)
TWIN(cuStreamDestroy, cudaStreamDestroy) TWIN(cuStreamDestroy_v2, cudaStreamDestroy) TWIN(cuStreamQuery, cudaStreamQuery)
TWIN(cuStreamGetPriority, cudaStreamGetPriority) TWIN(cuStreamGetFlags, cudaStreamGetFlags) TWIN(cuStreamGetDevice, cudaStreamGetDevice)
TWIN(cuStreamGetId, cudaStreamGetId) TWIN(cuStreamWaitEvent, cudaStreamWaitEvent) TWIN(cuStreamAddCallback, cudaStreamAddCallback)
TWIN(cuStreamGetAttribute, cudaStreamGetAttribute) TWIN(cuStreamSetAttribute, cudaStreamSetAttribute)
TWIN(cuStreamCopyAttributes, cudaStreamCopyAttributes) TWIN(cuStreamAttachMemAsync, cudaStreamAttachMemAsync)
TWIN(cuLaunchHostFunc, cudaLaunchHostFunc) TWIN(cuLaunchHostFunc_v2, cudaLaunchHostFunc)
TWIN(cuStreamIsCapturing, cudaStreamIsCapturing) TWIN(cuStreamBeginCapture_v2, cudaStreamBeginCapture)
TWIN(cuStreamEndCapture, cudaStreamEndCapture) TWIN(cuThreadExchangeStreamCaptureMode, cudaThreadExchangeStreamCaptureMode)
TWIN(cuStreamGetCaptureInfo_v2, cudaStreamGetCaptureInfo_v2)
#if ULLAGE_CUDA_MAJOR < 13
TWIN(cuStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo_v3)
#else
TWIN(cuStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo)
#endif
TWIN(cuEventCreate, cudaEventCreateWithFlags) TWIN(cuEventDestroy, cudaEventDestroy) TWIN(cuEventDestroy_v2, cudaEventDestroy)
TWIN(cuEventRecord, cudaEventRecord) TWIN(cuEventRecordWithFlags, cudaEventRecordWithFlags) TWIN(cuEventQuery, cudaEventQuery)
TWIN(cuEventSynchronize, cudaEventSynchronize) TWIN(cuEventElapsedTime, cudaEventElapsedTime)
TWIN(cuEventElapsedTime_v2, cudaEventElapsedTime) TWIN(cuIpcGetEventHandle, cudaIpcGetEventHandle)

/* ---- graphs */

TWIN(cuGraphCreate, cudaGraphCreate) TWIN(cuGraphDestroy, cudaGraphDestroy) TWIN(cuGraphLaunch, cudaGraphLaunch)
TWIN(cuGraphUpload, cudaGraphUpload) TWIN(cuGraphExecDestroy, cudaGraphExecDestroy) TWIN(cuGraphGetNodes, cudaGraphGetNodes)
TWIN(cuGraphGetRootNodes, cudaGraphGetRootNodes) TWIN(cuGraphNodeGetType, cudaGraphNodeGetType) TWIN(cuGraphClone, cudaGraphClone)
TWIN(cuGraphInstantiateWithFlags, cudaGraphInstantiateWithFlags) TWIN(cuGraphInstantiateWithParams, cudaGraphInstantiateWithParams)
TWIN(cuGraphDebugDotPrint, cudaGraphDebugDotPrint) TWIN(cuGraphAddEmptyNode, cudaGraphAddEmptyNode)
TWIN(cuGraphExecUpdate_v2, cudaGraphExecUpdate) TWIN(cuGraphAddKernelNode, cudaGraphAddKernelNode)
TWIN(cuGraphAddKernelNode_v2, cudaGraphAddKernelNode) TWIN(cuGraphAddMemsetNode, cudaGraphAddMemsetNode)
TWIN(cuGraphAddMemcpyNode, cudaGraphAddMemcpyNode) TWIN(cuGraphAddHostNode, cudaGraphAddHostNode)
TWIN(cuGraphAddChildGraphNode, cudaGraphAddChildGraphNode) TWIN(cuGraphAddEventRecordNode, cudaGraphAddEventRecordNode)
TWIN(cuGraphAddEventWaitNode, cudaGraphAddEventWaitNode) TWIN(cuGraphDestroyNode, cudaGraphDestroyNode)
TWIN(cuUserObjectCreate, cudaUserObjectCreate) TWIN(cuUserObjectRelease, cudaUserObjectRelease)
TWIN(cuUserObjectRetain, cudaUserObjectRetain) TWIN(cuGraphRetainUserObject, cudaGraphRetainUserObject)
TWIN(cuGraphReleaseUserObject, cudaGraphReleaseUserObject)

/* ---- devices */

TWIN(cuDeviceCanAccessPeer, cudaDeviceCanAccessPeer) TWIN(cuDeviceGetP2PAttribute, cudaDeviceGetP2PAttribute)
TWIN(cuDeviceGetPCIBusId, cudaDeviceGetPCIBusId) TWIN(cuDeviceGetByPCIBusId, cudaDeviceGetByPCIBusId)
TWIN(cuCtxGetStreamPriorityRange, cudaDeviceGetStreamPriorityRange) TWIN(cuCtxGetLimit, cudaDeviceGetLimit)
TWIN(cuCtxSetLimit, cudaDeviceSetLimit) TWIN(cuCtxGetCacheConfig, cudaDeviceGetCacheConfig)
TWIN(cuProfilerStart, cudaProfilerStart) TWIN(cuProfilerStop, cudaProfilerStop)
TWIN(cuOccupancyAvailableDynamicSMemPerBlock, cudaOccupancyAvailableDynamicSMemPerBlock)
TWIN(cuOccupancyMaxPotentialClusterSize, cudaOccupancyMaxPotentialClusterSize)
TWIN(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)

/* ---- pools and memory of the host; what allocates on the GPU is in driver_memory.c, which knows its caller */

TWIN(cuDeviceGetDefaultMemPool, cudaDeviceGetDefaultMemPool) TWIN(cuDeviceGetMemPool, cudaDeviceGetMemPool)
TWIN(cuDeviceSetMemPool, cudaDeviceSetMemPool) TWIN(cuMemPoolCreate, cudaMemPoolCreate) TWIN(cuMemPoolDestroy, cudaMemPoolDestroy)
TWIN(cuMemPoolTrimTo, cudaMemPoolTrimTo) TWIN(cuMemPoolSetAttribute, cudaMemPoolSetAttribute)
TWIN(cuMemPoolGetAttribute, cudaMemPoolGetAttribute) TWIN(cuMemPoolSetAccess, cudaMemPoolSetAccess)
TWIN(cuMemPoolGetAccess, cudaMemPoolGetAccess) TWIN(cuMemHostAlloc, cudaHostAlloc) TWIN(cuMemAllocHost, cudaMallocHost)
TWIN(cuMemAllocHost_v2, cudaMallocHost) TWIN(cuMemFreeHost, cudaFreeHost) TWIN(cuMemHostRegister, cudaHostRegister)
TWIN(cuMemHostRegister_v2, cudaHostRegister) TWIN(cuMemHostUnregister, cudaHostUnregister)
TWIN(cuMemHostGetDevicePointer, cudaHostGetDevicePointer) TWIN(cuMemHostGetDevicePointer_v2, cudaHostGetDevicePointer)
TWIN(cuMemHostGetFlags, cudaHostGetFlags) TWIN(cuMemcpyBatchAsync, cudaMemcpyBatchAsync) TWIN(cuMemcpyBatchAsync_v2, cudaMemcpyBatchAsync)
TWIN(cuTexObjectCreate, cudaCreateTextureObject) TWIN(cuTexObjectDestroy, cudaDestroyTextureObject)
TWIN(cuSurfObjectCreate, cudaCreateSurfaceObject) TWIN(cuSurfObjectDestroy, cudaDestroySurfaceObject)
    // clang-format on
