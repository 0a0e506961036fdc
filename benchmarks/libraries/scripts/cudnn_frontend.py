"""cuDNN's own Python frontend: an attention graph, planned and run on tensors of torch."""

import cudnn
import torch
from counted import Counted

SHAPE = (2, 8, 512, 64)


def run(counted: Counted) -> None:
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(handle=handle, io_data_type=cudnn.data_type.BFLOAT16, compute_data_type=cudnn.data_type.FLOAT)
    q, k, v = (torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    inputs = [graph.tensor_like(tensor) for tensor in (q, k, v)]
    output, _ = graph.sdpa(*inputs, attn_scale=0.125, use_causal_mask=True, generate_stats=False)
    result = torch.empty_like(q)
    output.set_output(True).set_dim(list(SHAPE)).set_stride(list(result.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    graph.execute({**dict(zip(inputs, (q, k, v), strict=True)), output: result}, workspace, handle=handle)
    counted.look()
