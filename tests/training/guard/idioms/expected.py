"""What is mathematically true of an idiom: whether the losses of parts of its batch add up, and with which weights."""

from typing import Literal

Expected = Literal["parts", "weighted", "coupled", "random"]
