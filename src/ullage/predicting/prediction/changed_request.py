"""Apply a suggested change to a prediction request."""

import os
from dataclasses import replace

from ullage.gpu.emulator.torch_build import find_torch
from ullage.predicting.changes.change import Change, text_of
from ullage.predicting.prediction.request import Request
from ullage.recorded.settings import semantics_of, settings_in_force, split_options, with_options


def changed(request: Request, change: Change, setting: str) -> Request:
    """Return a copy of a prediction request to which a suggested change is added."""
    if change.alloc_conf is not None:
        return request.with_options(alloc_conf=with_options(settings_of(request), change.alloc_conf(setting)))
    request = replace(request, changes=(*request.changes, text_of(change, setting)))
    return request if change.world_size is None else request.with_options(world_size=change.world_size(setting))


def makes_a_difference(request: Request, change: Change, setting: str) -> bool:
    """Return whether a suggested change differs from the request's current allocator options."""
    if change.alloc_conf is None:
        return True
    options = dict(split_options(change.alloc_conf(setting)))
    return not options.keys() & dict(split_options(settings_of(request))).keys()


def settings_of(request: Request) -> str:
    """Return the allocator settings of a request. The default is the environment of this process."""
    if request.options["alloc_conf"] is not None:
        return request.options["alloc_conf"]
    return settings_in_force(os.environ, semantics_of(find_torch().version))[0]
