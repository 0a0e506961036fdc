"""Programs in which boxes are found."""

import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from programs.registry import STEPS, Note, program, trained
from torch import nn


def _pictures(device: str, number: int, side: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    pictures = [torch.rand(3, side, side).to(device) for _ in range(number)]
    targets = []
    for _ in range(number):
        corner = torch.rand(5, 2) * side * 0.6
        size = torch.rand(5, 2) * side * 0.3 + 8
        masks = torch.zeros(5, side, side, dtype=torch.uint8)
        for mask, (left, top), (width, height) in zip(masks, corner.tolist(), size.tolist(), strict=True):
            mask[int(top) : int(top + height), int(left) : int(left + width)] = 1
        target = {"boxes": torch.cat([corner, corner + size], 1), "labels": torch.randint(1, 5, (5,)), "masks": masks}
        targets.append({name: each.to(device) for name, each in target.items()})
    return pictures, targets


def _backbone() -> nn.Module:
    backbone = nn.Sequential(
        nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1)
    )
    backbone.out_channels = 64  # type: ignore[assignment]
    return backbone


def _detector(model: Any, device: str, note: Note) -> None:
    model, optimizer = trained(model.to(device).train(), rate=1e-4)
    model.roi_heads.box_roi_pool.register_forward_pre_hook(
        lambda _, inputs: [note("boxes", len(each)) for each in inputs[1]] and None
    )
    if model.roi_heads.mask_roi_pool is not None:
        model.roi_heads.mask_roi_pool.register_forward_pre_hook(
            lambda _, inputs: [note("masks", len(each)) for each in inputs[1]] and None
        )
    for _ in range(2):
        pictures, targets = _pictures(device, 2, 320)
        losses = model(pictures, targets)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = model(pictures)
    note("found", sum(len(each["boxes"]) for each in found))


_SMALL: Final = {"min_size": 320, "max_size": 320, "num_classes": 6}


@program
def faster_rcnn(device: str, note: Note) -> None:
    """Train a Faster R-CNN of torchvision, and look for boxes with it."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    anchors = AnchorGenerator(((32, 64, 128),), ((0.5, 1.0, 2.0),))
    pool = MultiScaleRoIAlign(["0"], 7, 2)
    model = FasterRCNN(_backbone(), rpn_anchor_generator=anchors, box_roi_pool=pool, **_SMALL)
    _detector(model, device, note)


@program
def mask_rcnn(device: str, note: Note) -> None:
    """Train a Mask R-CNN of torchvision, and look for masks with it."""
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    anchors = AnchorGenerator(((32, 64, 128),), ((0.5, 1.0, 2.0),))
    pool, masks = MultiScaleRoIAlign(["0"], 7, 2), MultiScaleRoIAlign(["0"], 14, 2)
    model = MaskRCNN(_backbone(), rpn_anchor_generator=anchors, box_roi_pool=pool, mask_roi_pool=masks, **_SMALL)
    _detector(model, device, note)


@program
def nms_pipeline(device: str, note: Note) -> None:
    """Decode boxes from a convolution, keep those with a score, suppress, and pool what is left."""
    from torchvision.ops import nms, roi_align

    body, optimizer = trained(nn.Conv2d(3, 64, 8, 8).to(device))
    head = nn.Conv2d(64, 5, 1).to(device)
    classify = nn.Linear(64 * 49, 256).to(device)
    side = 32
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    centers = (torch.stack([x, y], -1).reshape(-1, 2) * 8.0 + 4).to(device)
    for _ in range(STEPS):
        features = body(torch.rand(1, 3, 256, 256, device=device))
        predicted = head(features)[0].flatten(1).T
        sizes = predicted[:, 2:4].clamp(-2, 2).exp() * 24
        middle = centers + predicted[:, :2] * 8
        boxes = torch.cat([middle - sizes / 2, middle + sizes / 2], 1).clamp(0, 256)
        scores = predicted[:, 4].sigmoid()
        likely = scores > 0.5
        note("likely", int(likely.sum()))
        kept = nms(boxes[likely].detach(), scores[likely].detach(), 0.5)
        note("kept", len(kept))
        rois = roi_align(features, [boxes[likely][kept]], 7, 1 / 8)
        classify(rois.flatten(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def yolo(device: str, note: Note) -> None:
    """Train YOLOv8n of ultralytics on made-up pictures."""
    import os

    os.environ.setdefault("YOLO_OFFLINE", "true")
    from PIL import Image
    from ultralytics import YOLO
    from ultralytics.utils import loss

    original = loss.v8DetectionLoss.preprocess

    def preprocess(this: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
        result = original(this, *arguments, **keywords)
        note("most boxes of a picture", result.shape[1])
        return result

    loss.v8DetectionLoss.preprocess = preprocess
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for part in ("train", "val"):
            (folder / "images" / part).mkdir(parents=True)
            (folder / "labels" / part).mkdir(parents=True)
            for number in range(4):
                pixels = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(folder / "images" / part / f"{number}.png")
                lines = [
                    f"{int(torch.randint(0, 2, ()))} {a:.3f} {b:.3f} {c:.3f} {d:.3f}\n"
                    for a, b, c, d in (torch.rand(2 + number, 4) * 0.4 + 0.3).tolist()
                ]
                (folder / "labels" / part / f"{number}.txt").write_text("".join(lines))
        data = folder / "data.yaml"
        data.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [a, b]\n")
        YOLO("yolov8n.yaml").train(
            data=str(data),
            epochs=1,
            imgsz=64,
            batch=4,
            device=0 if device == "cuda" else "cpu",
            workers=0,
            plots=False,
            amp=False,
            save=False,
            val=True,
            project=place,
            verbose=False,
        )


@program
def fcos(device: str, note: Note) -> None:
    """Train an FCOS of torchvision, and look for boxes with a score."""
    from torchvision.models.detection import FCOS
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    anchors = AnchorGenerator(((16,),), ((1.0,),))
    model: Any = FCOS(_backbone(), 6, min_size=320, max_size=320, anchor_generator=anchors, score_thresh=0.05)
    _single_stage(model, device, note)


@program
def retinanet(device: str, note: Note) -> None:
    """Train a RetinaNet of torchvision, and look for boxes with a score."""
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    anchors = AnchorGenerator(((32, 64, 128),), ((0.5, 1.0, 2.0),))
    model: Any = RetinaNet(_backbone(), 6, min_size=320, max_size=320, anchor_generator=anchors, score_thresh=0.008)
    _single_stage(model, device, note)


def _single_stage(model: Any, device: str, note: Note) -> None:
    model, optimizer = trained(model.to(device).train(), rate=1e-4)
    for _ in range(2):
        pictures, targets = _pictures(device, 2, 320)
        losses = model(pictures, targets)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = model(pictures)
    note("found", sum(len(each["boxes"]) for each in found))


@program
def score_threshold(device: str, note: Note) -> None:
    """Keep the places of a heat map that are likelier than the rest and the largest around (CenterNet), and crop."""
    body = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU()).to(device)
    heat, after = nn.Conv2d(32, 4, 1).to(device), nn.Linear(32 * 9, 128).to(device)
    _, optimizer = trained(nn.ModuleList([body, heat, after]))
    for _ in range(STEPS):
        features = body(torch.rand(1, 3, 256, 256, device=device))
        scores = heat(features).sigmoid()
        peak = (nn.functional.max_pool2d(scores, 3, 1, 1) == scores) & (scores > scores.mean())
        _, _, y, x = peak.nonzero(as_tuple=True)
        note("peaks", len(y))
        windows = nn.functional.unfold(features, 3, padding=1)[0].T
        after(windows[y * 64 + x]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def dynamic_k(device: str, note: Note) -> None:
    """Assign to each box as many anchors as the overlaps of the best predictions sum to (SimOTA)."""
    from torchvision.ops import box_iou

    side, count = 20, 8
    body = nn.Sequential(nn.Conv2d(3, 32, 8, 8), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU()).to(device)
    head, after = nn.Conv2d(32, 5, 1).to(device), nn.Linear(32, 128).to(device)
    _, optimizer = trained(nn.ModuleList([body, head, after]))
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    centers = (torch.stack([x, y], -1).reshape(-1, 2) * 8.0 + 4).to(device)
    for _ in range(STEPS):
        corner = torch.rand(count, 2) * 100
        boxes = torch.cat([corner, corner + 20 + torch.rand(count, 2) * 40], 1).to(device)
        features = body(torch.rand(1, 3, side * 8, side * 8, device=device))
        predicted = head(features)[0].flatten(1).T
        half = predicted[:, 2:4].exp() * 16
        middle = centers + predicted[:, :2] * 8
        overlap = box_iou(boxes, torch.cat([middle - half, middle + half], 1))
        wanted = overlap.topk(10, -1).values.sum(-1).int().clamp(min=1)
        cost = -overlap.clamp(min=1e-8).log() + nn.functional.softplus(-predicted[:, 4])
        matched = torch.zeros_like(cost, dtype=torch.bool)
        for number in range(count):
            matched[number, cost[number].topk(int(wanted[number]), largest=False).indices] = True
        positive = matched.any(0)
        note("positive", int(positive.sum()))
        after(features[0].flatten(1).T[positive]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def two_levels(device: str, note: Note) -> None:
    """Suppress the best 300 predictions of two levels of features together, and pool what is left."""
    from torchvision.ops import nms, roi_align

    first = nn.Sequential(nn.Conv2d(3, 32, 7, 4, 3), nn.BatchNorm2d(32), nn.ReLU()).to(device)
    second = nn.Sequential(nn.Conv2d(32, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()).to(device)
    head, classify = nn.Conv2d(32, 5, 3, padding=1).to(device), nn.Linear(32 * 49, 64).to(device)
    _, optimizer = trained(nn.ModuleList([first, second, head, classify]))
    for _ in range(STEPS):
        large = first(torch.rand(1, 3, 160, 160, device=device))
        boxes, scores = [], []
        for level, step in ((large, 4), (second(large), 8)):
            side = level.shape[-1]
            at = (torch.arange(side, device=device) + 0.5) * step
            middle = torch.stack(torch.meshgrid(at, at, indexing="xy"), -1).reshape(-1, 2)
            predicted = head(level)[0].flatten(1).T
            middle, half = middle + predicted[:, :2] * step, predicted[:, 2:4].clamp(-2, 2).exp() * 2 * step
            boxes.append(torch.cat([middle - half, middle + half], 1).clamp(0, 160))
            scores.append(predicted[:, 4])
        score, place = torch.cat(scores).topk(300)
        box = torch.cat(boxes)[place]
        kept = nms(box.detach(), score.detach(), 0.5)
        note("kept", len(kept))
        rois = roi_align(large, [box[kept]], 7, 1 / 4)
        classify(rois.flatten(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
