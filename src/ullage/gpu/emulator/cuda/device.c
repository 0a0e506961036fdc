/* What a GPU answers about itself, and how many blocks it can hold. */
#include "runtime.h"

/* CUdevice_attribute, CUDA 13.0: the numbers are the driver's, the answers the GPU's or a common value. */
int device_attribute(const struct card *card, int device, int attribute) {
  const int64_t *figure = card->figure;
  switch (attribute) {
    case 1: return 1024; /* threads per block */
    case 2:
    case 3: return 1024;       /* block x, y */
    case 4: return 64;         /* block z */
    case 5: return 0x7fffffff; /* grid x */
    case 6:
    case 7: return 65535;    /* grid y, z */
    case 8: return 48 << 10; /* shared memory per block */
    case 9: return 64 << 10; /* constant memory */
    case 10: return 32;      /* warp */
    case 12: return 65536;   /* registers per block */
    case ATTRIBUTE_CLOCK_KHZ: return 1500000;
    case 14: return 512; /* texture alignment */
    case 15:
    case 19:
    case 31:
    case 41: return 1; /* overlap, map host memory, concurrent kernels, unified addressing */
    case 16: return (int)figure[CARD_SM_COUNT];
    case 33: return device + 1; /* PCI bus */
    case ATTRIBUTE_MEMORY_CLOCK_KHZ: return 1500000;
    case ATTRIBUTE_MEMORY_BUS_WIDTH: return 256;
    case 38: return (int)figure[CARD_L2_BYTES];
    case 39: return (int)figure[CARD_THREADS_PER_SM];
    case 40: return 2; /* copy engines */
    case 75: return (int)figure[CARD_CC_MAJOR];
    case 76: return (int)figure[CARD_CC_MINOR];
    case 78:
    case 79:
    case 80: return 1; /* stream priorities, L1 */
    case 81: return (int)figure[CARD_SHARED_PER_SM_BYTES];
    case 82: return (int)figure[CARD_REGISTERS_PER_SM];
    case 83:
    case 89:
    case 90:
    case 91: return 1; /* managed memory, concurrent access, preemption, registered pointers */
    case 92:
    case 93:
    case 95: return 1; /* memory operations on streams, cooperative launch */
    case 97: return (int)figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES];
    case 99: return 1; /* host register */
    case 102:
    case 103: return 1; /* virtual memory management, file-descriptor handles */
    case 106: return (int)figure[CARD_BLOCKS_PER_SM];
    case 111: return 1 << 10;                    /* reserved shared memory per block */
    case 115: return 1;                          /* stream-ordered pools */
    case 120: return figure[CARD_CC_MAJOR] >= 9; /* clusters */
    case 121:
    case 122:
    case 125: return 1; /* deferred arrays, 64-bit stream operations, IPC events */
    default: return 0;  /* fabric handles, multicast, GPUDirect, NUMA: not there */
  }
}

int resident_blocks(const struct card *card, int block_threads, size_t shared) {
  if (!card || block_threads <= 0 || shared > (size_t)card->figure[CARD_SHARED_PER_BLOCK_OPTIN_BYTES]) return 0;
  int64_t blocks = card->figure[CARD_THREADS_PER_SM] / block_threads;
  if (shared && (int64_t)(card->figure[CARD_SHARED_PER_SM_BYTES] / (int64_t)shared) < blocks)
    blocks = card->figure[CARD_SHARED_PER_SM_BYTES] / (int64_t)shared;
  return (int)(blocks < card->figure[CARD_BLOCKS_PER_SM] ? blocks : card->figure[CARD_BLOCKS_PER_SM]);
}

/* PyTorch's builds carry code for the first architecture of a generation and for sm_86; a later one of the same
 * generation runs that code, and CUB refuses a version that it was not compiled for. */
int code_version(const struct card *card) {
  int major = (int)card->figure[CARD_CC_MAJOR], minor = (int)card->figure[CARD_CC_MINOR];
  if (major == 7) return minor >= 5 ? 75 : 70;
  if (major == 8) return minor >= 6 ? 86 : 80;
  return major * 10;
}
