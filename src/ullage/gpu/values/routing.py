"""Choose the experts for tokens if a mixture-of-experts router has random scores.

There are four ways: by these scores, evenly, all tokens to the same experts, or unevenly by a Zipf distribution.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from ullage.gpu.values.choice import skew_of
from ullage.gpu.values.content import Certainty, Operand, OperatorCall

_MOST_EXPERTS: Final = 512
_MOST_CHOSEN: Final = 32
_BY_SCORES: Final = ("drawn", "auto")  # "auto" is resolved by the caller where it matters
_CHOOSE: Final = frozenset({"aten::topk", "aten::argmax", "aten::max"})


class Routing:
    """Replaces the router's choice of experts: a `topk`, `argmax` or `max` over random scores.

    It recognizes a router by many tokens and few experts.
    """

    def __init__(self, name: str = "drawn") -> None:
        self.name = name
        self.skew = skew_of(name)
        self.chosen = 0
        """The number of router calls for which ullage, instead of the router, has chosen the experts."""

    def results(self, call: OperatorCall, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Return the result of an operation that chooses experts by random scores, or None for other operations."""
        if self.name in _BY_SCORES or call.operator._schema.name not in _CHOOSE:
            return None
        operand = call.arguments[0]
        scores = arguments[0]
        if not isinstance(operand, Operand) or operand.content.certainty < Certainty.DRAWN or scores.dim() < 2:
            return None
        experts, tokens = scores.size(-1), scores.numel() // max(scores.size(-1), 1)
        name = call.operator._schema.name
        chosen, place, otherwise = (arguments[1], 2, -1) if name == "aten::topk" else (1, 1, None)
        dimension = keywords.get("dim", arguments[place] if len(arguments) > place else otherwise)
        if dimension not in (-1, scores.dim() - 1) or not 2 <= experts <= min(_MOST_EXPERTS, tokens):
            return None
        if chosen > min(experts, _MOST_CHOSEN):
            return None
        self.chosen += 1
        indices = self._indices(tokens, experts, chosen).reshape(*scores.shape[:-1], chosen)
        if name == "aten::topk":
            return scores.gather(-1, indices), indices
        keeps = bool(keywords.get("keepdim", arguments[2] if len(arguments) > 2 else False))
        picked = indices if keeps else indices.squeeze(-1)
        if name == "aten::argmax":
            return picked
        values = scores.gather(-1, indices)
        return (values if keeps else values.squeeze(-1)), picked

    def _indices(self, tokens: int, experts: int, chosen: int) -> torch.Tensor:
        if self.name == "worst":
            return torch.arange(chosen, device="cpu").expand(tokens, chosen)
        if self.name == "balanced":
            return (torch.arange(tokens, device="cpu")[:, None] * chosen + torch.arange(chosen, device="cpu")) % experts
        weights = torch.arange(1, experts + 1, dtype=torch.float64, device="cpu") ** -float(self.skew or 0)
        noise = torch.empty(tokens, experts, dtype=torch.float64, device="cpu").exponential_(
            generator=torch.Generator().manual_seed(tokens)
        )
        return (weights / noise).topk(chosen, -1).indices
