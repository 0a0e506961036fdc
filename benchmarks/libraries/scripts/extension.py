"""An extension built by `torch.utils.cpp_extension` with nvcc from PyPI's wheels: a fused SGD step, as apex has one."""

import torch
from counted import Counted
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void step(float* weights, const float* gradient, float* momentum, float rate, int count) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  momentum[at] = 0.9f * momentum[at] + gradient[at];
  weights[at] -= rate * momentum[at];
}

torch::Tensor fused_step(torch::Tensor weights, torch::Tensor gradient, double rate) {
  auto momentum = torch::zeros_like(weights);
  int count = weights.numel();
  void* scratch = nullptr;
  TORCH_CHECK(cudaMalloc(&scratch, 8 << 20) == cudaSuccess);
  step<<<(count + 255) / 256, 256>>>(weights.data_ptr<float>(), gradient.data_ptr<float>(), momentum.data_ptr<float>(),
                                     (float)rate, count);
  TORCH_CHECK(cudaGetLastError() == cudaSuccess);
  return momentum;
}
"""
WEIGHTS = 4096 * 4096
SCRATCH_BYTES = 8 << 20


def run(counted: Counted) -> None:
    module = load_inline(
        "fused_step_of_ullage",
        cpp_sources="torch::Tensor fused_step(torch::Tensor weights, torch::Tensor gradient, double rate);",
        cuda_sources=SOURCE,
        functions=["fused_step"],
        extra_cuda_cflags=["-arch=sm_89"],
    )
    layer = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
    layer(torch.randn(64, 4096, device="cuda")).pow(2).mean().backward()
    with counted.grows("momentum", 4 * WEIGHTS):
        momentum = module.fused_step(layer.weight.data, layer.weight.grad, 0.1)
    assert momentum.shape == layer.weight.shape
    counted.equal("its own cudaMalloc", counted.look(), SCRATCH_BYTES)
