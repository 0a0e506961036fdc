"""Records and restores the settings of PyTorch's layers, such as `dropout.p`.

It also deletes attributes that a failed attempt has added to layers and parameters.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from torch import nn

from ullage.training.guard.state.objects.content_node import ATOMS

_OF_PLAIN_MODULE: Final = frozenset(vars(nn.Module()))
# The settings of PyTorch's layers that cannot change in forward. They determine the layer's weights or how the layer is
# called.
_OF_WEIGHTS: Final = frozenset(
    f"{side}_{what}" for side in ("in", "out") for what in ("features", "channels")
) | {"kernel_size", "stride", "padding", "dilation", "transposed", "output_padding", "groups", "padding_mode"} | {
    *("num_embeddings", "embedding_dim", "num_features", "normalized_shape", "elementwise_affine", "affine"),
    *("inplace", "bias", "batch_first", "embed_dim", "kdim", "vdim", "head_dim", "num_heads", "d_model"),
}  # fmt: skip

# The prefixes of attributes that PyTorch adds when it compiles or shards a module.
_OF_PYTORCH: Final = ("_dynamo", "_fsdp", "_ddp")


class Layers:
    """A record of the settings of PyTorch's layers."""

    def __init__(self, layers: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> None:
        by_name: dict[str, list[nn.Module]] = {}
        for layer in layers:
            for name, value in vars(layer).items():
                if name not in _OF_PLAIN_MODULE and name not in _OF_WEIGHTS and isinstance(value, ATOMS):
                    by_name.setdefault(name, []).append(layer)
        self._settings = [(name, attrgetter(name), owners) for name, owners in by_name.items()]
        self._owners: list[Any] = [*layers, *parameters]
        self.attributes = [vars(owner) for owner in self._owners]
        self._names = [frozenset(some) for some in self.attributes]
        self._values: list[list[Any]] | None = None

    def record(self) -> None:
        """Record the current values of the layers' settings."""
        self._values = [list(map(read, owners)) for _, read, owners in self._settings]

    def _changed_settings(self) -> Iterator[tuple[str, nn.Module, Any]]:
        for (name, read, owners), values in zip(self._settings, self._values or (), strict=True):
            now = list(map(read, owners))
            if now != values:
                yield from (
                    (name, owner, before)
                    for owner, one, before in zip(owners, now, values, strict=True)
                    if one is not before and one != before
                )

    def _put_on(self) -> Iterator[tuple[str, Any]]:
        for owner, attributes, names in zip(self._owners, self.attributes, self._names, strict=True):
            if len(attributes) > len(names):
                new = attributes.keys() - names
                yield from ((name, owner) for name in new if not name.startswith(_OF_PYTORCH))

    def changed(self) -> list[str]:
        """Return the names of settings that have changed, and of attributes that were added."""
        if self._values is None:
            return []
        changed = [(name, owner) for name, owner, _ in self._changed_settings()]
        return [f"{type(owner).__name__}.{name}" for name, owner in [*changed, *self._put_on()]]

    def restore(self) -> None:
        """Restore the layers' settings, and delete the attributes that were added."""
        if self._values is None:
            return
        for name, owner, before in list(self._changed_settings()):
            setattr(owner, name, before)
        for name, owner in list(self._put_on()):
            del vars(owner)[name]
