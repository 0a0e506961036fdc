"""Read the folders of PASCAL VOC and COCO, which are not here."""

import importlib.util

import torch
from torchvision.datasets import CocoDetection, ImageFolder, VOCDetection, VOCSegmentation

boxes = VOCDetection("missing", download=True)
assert len(boxes) == 5
assert boxes[0][0].size == (80, 64)
assert [each["name"] for each in boxes[0][1]["annotation"]["object"]] == ["person", "car"]
assert len(VOCDetection("missing", year="2007", image_set="test")) == 5
masks = VOCSegmentation("missing", image_set="val")
assert masks[0][1].size == (80, 64)
assert masks[0][1].getextrema() == (7, 15)
assert len(ImageFolder("missing").classes) == 12
if importlib.util.find_spec("pycocotools") is not None:
    objects = CocoDetection("missing", "missing/instances.json")
    assert len(objects) == 5
    assert [each["category_id"] for each in objects[0][1]] == [1, 2]
torch.ones(1, device="cuda")
