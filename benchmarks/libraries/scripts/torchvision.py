"""torchvision: its CUDA operators, with the gradients of those that have one."""

import torch
from counted import Counted
from torchvision import ops

SIDE, CHANNELS, ROIS, POOLED = 64, 256, 500, 7


def run(counted: Counted) -> None:
    corner = torch.rand(ROIS, 2) * 32
    boxes = torch.cat([corner, corner + 16], dim=1).cuda()
    ops.nms(boxes, torch.rand(ROIS, device="cuda"), 0.5)
    picture = torch.randn(1, CHANNELS, SIDE, SIDE, device="cuda", requires_grad=True)
    rois = torch.cat([torch.zeros(ROIS, 1), boxes.cpu()], dim=1).cuda()
    with counted.grows("roi_align of 500 boxes", 4 * ROIS * CHANNELS * POOLED * POOLED):
        pooled = ops.roi_align(picture, rois, POOLED)
    pooled.mean().backward()
    convolution = ops.DeformConv2d(CHANNELS, CHANNELS, 3, padding=1).cuda()
    offset = torch.zeros(1, 18, SIDE, SIDE, device="cuda", requires_grad=True)
    convolution(picture, offset).mean().backward()
    assert picture.grad is not None
    assert offset.grad is not None
