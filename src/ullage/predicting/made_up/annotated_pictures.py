"""Generate the folders of the image data sets PASCAL VOC and COCO, for the classes of torchvision that read them.

Every image has two objects.
"""

import io
import json
import os
from collections.abc import Callable
from typing import Any, Final

from ullage.base.own_files import OwnFolder
from ullage.predicting.made_up.choice import MadeUpData
from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.pictures import encoded
from ullage.predicting.made_up.repository import MadeUpRepositories
from ullage.predicting.made_up.rows import lengths_of
from ullage.predicting.made_up.standing_in import stand_in

# Two of the 20 classes of PASCAL VOC.
_VOC_CLASSES: Final = ("person", "car")
_VOC_OBJECT: Final = (
    "<object><name>{name}</name><pose>Unspecified</pose><truncated>0</truncated><difficult>0</difficult><bndbox>"
    "<xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
)
_VOC_FILE: Final = (
    "<annotation><folder>VOC</folder><filename>{name}.jpg</filename><size><width>{width}</width>"
    "<height>{height}</height><depth>3</depth></size><segmented>1</segmented>{objects}</annotation>"
)
_VOC_LISTS: Final = ("train", "trainval", "val", "test")
_COCO_CLASSES: Final = 80


def install(repositories: MadeUpRepositories, data: MadeUpData) -> None:
    """Generate missing folders when the script uses torchvision's classes for PASCAL VOC and COCO."""
    maker = _AnnotatedPictures(repositories, data)
    stand_in("torchvision.datasets.voc", "_VOCBase.__init__", maker.voc)
    stand_in("torchvision.datasets.coco", "CocoDetection.__init__", maker.coco)


class _AnnotatedPictures:
    def __init__(self, repositories: MadeUpRepositories, data: MadeUpData) -> None:
        self._repositories = repositories
        self._data = data
        self._count = len(lengths_of(repositories.choice, data))
        self._made: dict[str, str] = {}

    # The class reads the generated folder in its usual way.
    def voc(self, original: Callable[..., Any], this: Any, root: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            original(this, root, *arguments, **keywords)
        except Exception as error:
            if not is_not_there(error) and not isinstance(error, RuntimeError):
                raise
        else:
            return
        words = ("year", "image_set", "download", "transform", "target_transform", "transforms")
        keywords = dict(zip(words, arguments, strict=False)) | keywords | {"download": False}
        year = str(keywords.get("year", "2012"))
        year = f"{year}-test" if year == "2007" and keywords.get("image_set") == "test" else year
        from torchvision.datasets import voc

        original(this, self._voc_folder(os.path.join(*voc.DATASET_YEAR_DICT[year]["base_dir"].split("/"))), **keywords)
        self._say(root)

    def coco(
        self, original: Callable[..., Any], this: Any, root: Any, annFile: Any, *arguments: Any, **keywords: Any
    ) -> None:
        try:
            original(this, root, annFile, *arguments, **keywords)
        except Exception as error:
            if not is_not_there(error):
                raise
        else:
            return
        folder = self._coco_folder()
        original(this, folder, os.path.join(folder, "instances.json"), *arguments, **keywords)
        self._say(root)

    def _voc_folder(self, base: str) -> str:
        if base not in self._made:
            root = self._repositories.home.make_folder(f"voc-{len(self._made)}")
            self._made[base] = str(root.path)
            pictures, boxes, masks, lists = (
                _folders(root, os.path.join(base, name))
                for name in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main")
            )
            names = [f"{number:06}" for number in range(self._count)]
            picture, mask = encoded(self._data.width, self._data.height), self._mask()
            for name in names:
                pictures.write_whole(f"{name}.jpg", picture)
                masks.write_whole(f"{name}.png", mask)
                boxes.write_whole(f"{name}.xml", self._voc_text(name).encode())
            other = _folders(root, os.path.join(base, "ImageSets", "Segmentation"))
            for name in _VOC_LISTS:
                for folder in (lists, other):
                    folder.write_whole(f"{name}.txt", "".join(f"{each}\n" for each in names).encode())
        return self._made[base]

    def _voc_text(self, name: str) -> str:
        objects = (
            _VOC_OBJECT.format(name=each, left=left, top=top, right=left + width, bottom=top + height)
            for each, (left, top, width, height) in zip(_VOC_CLASSES, self._boxes(), strict=True)
        )
        return _VOC_FILE.format(name=name, width=self._data.width, height=self._data.height, objects="".join(objects))

    # The left and the right half of an image: left, top, width and height of each box.
    def _boxes(self) -> list[tuple[int, int, int, int]]:
        width, height = self._data.width, self._data.height
        half = max(width // 2 - 2, 1)
        return [(1, 1, half, max(height - 2, 1)), (min(width // 2, width - half), 1, half, max(height - 2, 1))]

    # The numbers of VOC's classes "person" and "car" are 15 and 7.
    def _mask(self) -> bytes:
        from PIL import Image

        mask = Image.new("P", (self._data.width, self._data.height), 15)
        mask.putpalette(bytes(range(256)) * 3)  # all 256 entries: with fewer, Pillow writes fewer bits per pixel
        mask.paste(7, (self._data.width // 2, 0, self._data.width, self._data.height))
        file = io.BytesIO()
        mask.save(file, "PNG")
        return file.getvalue()

    def _coco_folder(self) -> str:
        if "coco" not in self._made:
            folder = self._repositories.home.make_folder("coco")
            classes = self._data.classes or _COCO_CLASSES
            picture = encoded(self._data.width, self._data.height)
            size = {"width": self._data.width, "height": self._data.height}
            images, objects = [], []
            for number in range(self._count):
                name = f"{number:012}.jpg"
                folder.write_whole(name, picture)
                images.append({"id": number, "file_name": name, **size})
                objects += [
                    self._coco_object(2 * number + place, number, classes, box)
                    for place, box in enumerate(self._boxes())
                ]
            categories = [{"id": number + 1, "name": f"class_{number}"} for number in range(classes)]
            text = json.dumps({"images": images, "annotations": objects, "categories": categories})
            folder.write_whole("instances.json", text.encode())
            self._made["coco"] = str(folder.path)
        return self._made["coco"]

    def _coco_object(self, number: int, image: int, classes: int, box: tuple[int, int, int, int]) -> dict[str, Any]:
        left, top, width, height = box
        right, bottom = left + width, top + height
        return {
            "id": number + 1,
            "image_id": image,
            "category_id": number % classes + 1,
            "bbox": list(box),
            "area": width * height,
            "iscrowd": 0,
            "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
            "caption": "the the the",
        }

    def _say(self, root: Any) -> None:
        self._repositories.note(
            f"generated: {self._count} images of {self._data.height}x{self._data.width} with 2 objects each in place "
            f"of {root}"
        )


def _folders(folder: OwnFolder, path: str) -> OwnFolder:
    for name in path.split(os.sep):
        folder = folder.folder(name) if name in folder.names() else folder.make_folder(name)
    return folder
