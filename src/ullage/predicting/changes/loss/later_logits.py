"""The source code of logits for PyTorch's `linear_cross_entropy`, which ullage copies into the user's script."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined"

import torch


class LaterLogits(torch.Tensor):
    """The logits of a linear layer. `cross_entropy` computes them in parts, and any other function as a whole."""

    @classmethod
    def in_training(cls, head):
        """Let a linear layer return its logits in this form while it is in training mode."""
        plain = head.forward
        head.forward = lambda hidden: cls.of(head, hidden) if head.training else plain(hidden)

    @classmethod
    def of(cls, head, hidden, dtype=None):
        made = hidden.detach().new_empty(()).expand(*hidden.shape[:-1], head.out_features).as_subclass(cls)
        made.head, made.hidden, made.kind = head, hidden, dtype
        return made

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = cls.without_logits(getattr(function, "__name__", ""), function, args, kwargs)
            if result is NotImplemented:
                result = function(*cls.computed(args), **cls.computed(kwargs))
        return result

    @classmethod
    def without_logits(cls, name, function, args, kwargs):
        if name in ("__get__", "size", "dim", "numel", "__len__", "is_floating_point"):
            return function(*args, **kwargs)
        logits = args[0] if args else None
        if not isinstance(logits, cls):
            return NotImplemented
        width, classes = logits.hidden.shape[-1], logits.shape[-1]
        if name in ("contiguous", "float"):
            return cls.of(logits.head, logits.hidden, torch.float32 if name == "float" else logits.kind)
        if name in ("view", "reshape", "flatten"):
            shape = function(*args, **kwargs).shape
            if shape[-1] == classes:
                return cls.of(logits.head, logits.hidden.reshape(*shape[:-1], width), logits.kind)
        if name == "__getitem__":
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            is_cut = any(each is not ... and not isinstance(each, slice) for each in parts)
            if not is_cut and (parts[-1] == slice(None) or (... not in parts and len(parts) < logits.ndim)):
                return cls.of(logits.head, logits.hidden[parts], logits.kind)
        if name == "cross_entropy" and logits.ndim == 2:
            return cls.loss(*args, **kwargs)
        return NotImplemented

    @staticmethod
    def loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", **more):  # noqa: A002
        if weight is not None or size_average is not None or reduce is not None or any(more.values()):
            return NotImplemented  # for example label smoothing, for which linear_cross_entropy stores all logits
        if target.is_floating_point():
            return NotImplemented
        hidden, factor, bias, kind = input.hidden, input.head.weight, input.head.bias, input.kind
        if torch.is_autocast_enabled("cuda"):
            narrow, kind = torch.get_autocast_dtype("cuda"), torch.float32
            hidden, factor, bias = hidden.to(narrow), factor.to(narrow), None if bias is None else bias.to(narrow)
        options = torch.nn.LinearCrossEntropyOptions()  # without options, all logits are stored
        loss = torch.nn.functional.linear_cross_entropy(
            hidden, factor, target, linear_bias=bias, ignore_index=ignore_index, reduction=reduction, options=options
        )
        return loss if kind is None else loss.to(kind)

    @classmethod
    def computed(cls, given):
        if isinstance(given, cls):
            found = torch.nn.functional.linear(given.hidden, given.head.weight, given.head.bias)
            return found if given.kind is None else found.to(given.kind)
        if isinstance(given, dict):
            return {name: cls.computed(each) for name, each in given.items()}
        return type(given)(map(cls.computed, given)) if type(given) in (list, tuple) else given
