// PyTorch's own allocator, alone: run a program of allocations and frees on libc10_cuda.so over null_cuda.c.
//
//     real PROGRAM WAY     prints {"seconds": ..., "reserved_bytes": ..., ...}
//
// PROGRAM: int64 operations, keys below, then the columns op (0 allocate, 1 free), key, size, stream. WAY is through which
// of PyTorch's functions: "raw" (raw_alloc_with_stream, raw_delete: the shortest way in) or "tensor" (allocate, as tensors
// do it). The clock runs over the loop alone; it is the thread's CPU time.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*ask)(DeviceIndex));
}
extern "C" long null_cuda_calls;

namespace {

namespace Cuda = c10::cuda::CUDACachingAllocator;
using Column = std::vector<std::int64_t>;

struct Program {
  std::int64_t ids = 0;
  Column op, key, size, stream;
};

bool read(const char* path, Program& program) {
  std::FILE* file = std::fopen(path, "rb");
  std::int64_t head[2];
  bool whole = file && std::fread(head, sizeof head, 1, file) == 1;
  for (Column* column : {&program.op, &program.key, &program.size, &program.stream}) {
    if (!whole) break;
    column->resize(static_cast<std::size_t>(head[0]));
    whole = std::fread(column->data(), sizeof(std::int64_t), column->size(), file) == column->size();
  }
  if (file) std::fclose(file);
  if (whole) program.ids = head[1];
  return whole;
}

void run_raw(const Program& program, std::vector<void*>& live) {
  Cuda::CUDAAllocator* allocator = Cuda::get();
  for (std::size_t i = 0; i < program.op.size(); i++) {
    void*& place = live[static_cast<std::size_t>(program.key[i])];
    if (program.op[i] == 0)
      place = allocator->raw_alloc_with_stream(static_cast<std::size_t>(program.size[i]), reinterpret_cast<cudaStream_t>(program.stream[i]));
    else allocator->raw_delete(place);
  }
}

void run_tensor(const Program& program, std::vector<c10::DataPtr>& live) {
  Cuda::CUDAAllocator* allocator = Cuda::get();
  for (std::size_t i = 0; i < program.op.size(); i++) {
    c10::DataPtr& place = live[static_cast<std::size_t>(program.key[i])];
    if (program.op[i] == 0) place = allocator->allocate(static_cast<std::size_t>(program.size[i]));
    else place.clear();
  }
}

double now() {
  std::timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Live>
double seconds_of(void (*run)(const Program&, Live&), const Program& program, Live& live) {
  const double began = now();
  run(program, live);
  return now() - began;
}

}  // namespace

int main(int count, char** words) {
  Program program;
  if (count != 3 || !read(words[1], program)) return std::fprintf(stderr, "usage: real PROGRAM raw|tensor\n"), 2;
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  c10::cuda::detail::init_p2p_access_cache(1);
  Cuda::init(1);
  // What is alive at the end stays so until the figures are read, and the process ends without giving it back.
  auto& places = *new std::vector<void*>(static_cast<std::size_t>(program.ids));
  auto& pointers = *new std::vector<c10::DataPtr>;
  const bool raw = std::strcmp(words[2], "raw") == 0;
  if (!raw) pointers.resize(static_cast<std::size_t>(program.ids));
  const double seconds = raw ? seconds_of(run_raw, program, places) : seconds_of(run_tensor, program, pointers);
  const c10::CachingDeviceAllocator::DeviceStats stats = Cuda::getDeviceStats(0);
  std::printf("{\"seconds\": %.6f, \"allocated_bytes\": %lld, \"peak_allocated_bytes\": %lld, \"reserved_bytes\": %lld, \"requested_bytes\": %lld, \"calls\": %ld}\n",
              seconds, static_cast<long long>(stats.allocated_bytes[0].current), static_cast<long long>(stats.allocated_bytes[0].peak),
              static_cast<long long>(stats.reserved_bytes[0].current), static_cast<long long>(stats.requested_bytes[0].current), null_cuda_calls);
  std::fflush(stdout);
  std::_Exit(0);
}
