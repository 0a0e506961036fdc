"""Generate images: JPEG images, folders with a subfolder per class, and torchvision data sets."""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from ullage.predicting.made_up.choice import MadeUpData
from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.repository import MadeUpRepositories
from ullage.predicting.made_up.rows import lengths_of
from ullage.predicting.made_up.standing_in import stand_in

_COLOUR: Final = (124, 116, 104)
_VIDEO_PIXELS: Final = 224
_VIDEO_FRAME_MILLISECONDS: Final = 40


@cache
def encoded(width: int, height: int) -> bytes:
    """Return an image of one colour as JPEG bytes. Sizes are in pixels."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), _COLOUR).save(file, "JPEG")
    return file.getvalue()


@cache
def encoded_video(frames: int) -> bytes:
    """Return a video as the bytes of an animated GIF image, which FFmpeg decodes.

    Pillow joins equal frames, so each frame has another colour than the frame before.
    """
    from PIL import Image

    file = io.BytesIO()
    first, *others = (
        Image.new("RGB", (_VIDEO_PIXELS, _VIDEO_PIXELS), (number % 2 * 128, 116, 104)) for number in range(frames)
    )
    first.save(file, "GIF", save_all=True, append_images=others, duration=_VIDEO_FRAME_MILLISECONDS)
    return file.getvalue()


def install(repositories: MadeUpRepositories, data: MadeUpData) -> None:
    """Generate missing images when the script uses a torchvision data set."""
    maker = _MadeUpPictures(repositories, data)
    stand_in("torchvision.datasets.folder", "DatasetFolder.__init__", maker.folder)
    stand_in("torchvision.datasets.imagenet", "ImageNet.__init__", maker.folder)
    stand_in("torchvision.datasets.cifar", "CIFAR10.__init__", maker.cifar)
    stand_in("torchvision.datasets.mnist", "MNIST.__init__", maker.mnist)


class _MadeUpPictures:
    def __init__(self, repositories: MadeUpRepositories, data: MadeUpData) -> None:
        self._data = data
        self._repositories = repositories
        self._count = len(lengths_of(repositories.choice, data))
        self._classes = data.class_count
        self._path: str | None = None

    def folder(self, original: Callable[..., Any], this: Any, root: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            original(this, root, *arguments, **keywords)
        except (OSError, RuntimeError) as error:
            is_filled = Path(root).is_dir() and any(Path(root).iterdir())  # a failed download leaves an empty folder
            if is_filled and not isinstance(error, RuntimeError):
                raise
            import torchvision

            kept = {name: keywords[name] for name in ("transform", "target_transform") if name in keywords}
            torchvision.datasets.ImageFolder.__init__(this, self._files(), **kept)
            this.classes = [_class_name(number) for number in range(self._classes)]  # also classes without an image
            this.class_to_idx = {name: number for number, name in enumerate(this.classes)}
            self._say(str(root), self._data.height, self._data.width)

    def cifar(self, original: Callable[..., Any], this: Any, root: Any, *arguments: Any, **keywords: Any) -> None:
        classes = 100 if type(this).__name__ == "CIFAR100" else 10
        if self._stands_in(original, this, root, arguments, keywords, classes=classes, side=32):
            import numpy

            this.data = numpy.zeros((self._count, 32, 32, 3), dtype=numpy.uint8)
            this.targets = [number % classes for number in range(self._count)]

    def mnist(self, original: Callable[..., Any], this: Any, root: Any, *arguments: Any, **keywords: Any) -> None:
        if self._stands_in(original, this, root, arguments, keywords, classes=10, side=28):
            import torch

            this.data = torch.zeros(self._count, 28, 28, dtype=torch.uint8, device="cpu")
            this.targets = torch.arange(self._count, device="cpu") % 10

    def _stands_in(
        self,
        original: Callable[..., Any],
        this: Any,
        root: Any,
        arguments: Any,
        keywords: Any,
        *,
        classes: int,
        side: int,
    ) -> bool:
        try:
            original(this, root, *arguments, **keywords)
        except Exception as error:
            if not is_not_there(error) and not isinstance(error, RuntimeError):
                raise
        else:
            return False
        from torchvision.datasets import VisionDataset

        values = dict(zip(("train", "transform", "target_transform"), arguments, strict=False)) | keywords
        transforms = {name: values.get(name) for name in ("transform", "target_transform")}
        VisionDataset.__init__(this, root, **transforms)
        this.train = values.get("train", True)
        names = [f"class {number}" for number in range(classes)]
        if not hasattr(type(this), "classes"):
            this.classes = names
            this.class_to_idx = {name: number for number, name in enumerate(names)}
        self._say(str(root), side, side)
        return True

    def _files(self) -> str:
        if self._path is None:
            home = self._repositories.home.make_folder("pictures")
            picture = encoded(self._data.width, self._data.height)
            for number in range(min(self._classes, self._count)):
                with home.make_folder(_class_name(number)) as folder:
                    for row in range(number, self._count, self._classes):
                        folder.write_whole(f"{row:07}.jpg", picture)
            self._path = str(home.path)
        return self._path

    def _say(self, root: str, height: int, width: int) -> None:
        self._repositories.note(f"generated: {self._count} images of {height}x{width} in place of {root}")


def _class_name(number: int) -> str:
    return f"class_{number:04}"
