"""Run one rank of a distributed script without the other ranks. Collectives return as usual.

torch.distributed runs its own NCCL process group on an emulated NCCL, so that a collective allocates the same memory as
in a real run. Its store is replaced, and PyTorch's fake process group replaces Gloo.
"""

import functools
import inspect
import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, Final

CARDS_OF_A_NODE: Final = 8
_NCCL_ID_BYTES: Final = 128
# PyTorch calls these methods on Gloo groups, but its fake process group does not have them (torch 2.11, 2.15).
_NOT_KNOWN_TO_FAKE: Final = ("_set_sequence_number_for_group", "_set_default_timeout")


def environment_of(rank: int, world_size: int) -> dict[str, str]:
    """Return the environment variables that torchrun (torch 2.11) sets for a rank on a node with 8 GPUs."""
    local = min(world_size, CARDS_OF_A_NODE)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "GROUP_WORLD_SIZE": str(-(-world_size // local)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "ullage",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def announce(rank: int, world_size: int) -> None:
    """Set the environment variables of torchrun in this process."""
    os.environ |= environment_of(rank, world_size)


def stand_in_for_the_others(torch: ModuleType) -> None:
    """Replace functions of torch.distributed so that process groups work without the other ranks."""
    if not torch.distributed.is_available():
        return
    # torch.distributed also has a function named `rendezvous`, so the module cannot be read as an attribute.
    rendezvous = import_module("torch.distributed.rendezvous")
    distributed_c10d = import_module("torch.distributed.distributed_c10d")
    store_type = _store_type()
    if vars(distributed_c10d).get("ProcessGroupGloo") is _FakeGloo:
        return
    from ullage.gpu.values.ranks import NoPost, StorePost
    from ullage.gpu.values.start import current
    from ullage.predicting.prediction.ranks.lone_symmetric import stand_in_for_symmetric_memory

    values = current()
    messages = values.messages
    if messages is not None and isinstance(messages.post, StorePost):
        messages.post = NoPost()
    stores = []  # PyTorch's C++ side does not keep a store written in Python alive.

    def create(*arguments: Any, **keywords: Any) -> Any:
        stores.append(store_type())
        if messages is not None:
            values.begin()  # from now on, ranks may send objects to each other, also between hosts
        return stores[-1]

    vars(rendezvous)["_create_c10d_store"] = create
    for name in _NOT_KNOWN_TO_FAKE:
        setattr(_fake_group_type(), name, lambda group, *arguments: None)
    vars(distributed_c10d)["ProcessGroupGloo"] = _FakeGloo
    # A communicator that is split from its parent does not report its number of ranks, so subgroups are created with
    # `new_group` instead.
    vars(distributed_c10d)["_get_split_source"] = lambda *arguments: None
    split_group = functools.partial(_split_by_new_group, distributed_c10d)
    for owner in (distributed_c10d, torch.distributed, import_module("torch.distributed.device_mesh")):
        if "split_group" in vars(owner):
            vars(owner)["split_group"] = split_group
    stand_in_for_symmetric_memory()


def _split_by_new_group(
    distributed_c10d: ModuleType,
    parent_pg: Any = None,
    split_ranks: Any = None,
    timeout: Any = None,
    pg_options: Any = None,
    *rest: Any,
    **more: Any,
) -> Any:
    parent = parent_pg or distributed_c10d._get_default_group()
    mine = next((ranks for ranks in split_ranks or () if parent.rank() in ranks), None)
    if mine is None:
        return None
    ranks = [distributed_c10d.get_global_rank(parent, rank) for rank in mine]
    return distributed_c10d.new_group(ranks, timeout=timeout, pg_options=pg_options)


def run_spawned_here(torch: ModuleType, rank: int, note: Callable[[str], None]) -> None:
    """Make torch.multiprocessing.spawn run only one of its processes, inside the current process.

    With `join=False`, the script starts real processes, which are not measured.

    Args:
        torch: the torch module.
        rank: the number of the process to run; the last process if there are fewer.
        note: called with a note for the report.
    """
    module = import_module("torch.multiprocessing.spawn")

    def standing_in_for(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def run(*arguments: Any, **keywords: Any) -> Any:
            given = signature.bind(*arguments, **keywords)
            given.apply_defaults()
            asked = given.arguments
            if not asked["join"] or asked["nprocs"] < 1:
                return original(*arguments, **keywords)
            index = min(rank % CARDS_OF_A_NODE, asked["nprocs"] - 1)
            note(
                f"torch.multiprocessing.spawn: only process {index} of {asked['nprocs']} ran, "
                "in the script's own process"
            )
            stand_in_for_the_others(torch)
            return asked["fn"](index, *asked["args"])

        return run

    for name in ("start_processes", "spawn"):
        stand_in = standing_in_for(getattr(module, name))
        for owner in (module, torch.multiprocessing):
            setattr(owner, name, stand_in)


def _store_type() -> type:
    from torch._C._distributed_c10d import Store

    class LoneStore(Store):
        """A torch.distributed store that simulates the other ranks: every key seems to be set already."""

        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def clone(self) -> Any:
            return self

        def set(self, key: str, value: str | bytes) -> None:
            self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            return self._values.get(key, bytes(_NCCL_ID_BYTES))

        def add(self, key: str, amount: int) -> int:
            count = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(count).encode()
            return count

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            if self._values.get(key, b"").decode() == expected:
                self.set(key, desired)
            return self._values.get(key, expected.encode())

        # NCCL's watchdog calls this to find out whether a rank has failed.
        def check(self, keys: list[str]) -> bool:
            return all(key in self._values for key in keys)

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            return None

        def append(self, key: str, value: str | bytes) -> None:
            self.set(key, self._values.get(key, b"") + (value.encode() if isinstance(value, str) else bytes(value)))

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def delete_key(self, key: str) -> bool:
            return self._values.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._values)

        def has_extended_api(self) -> bool:
            return True

        def set_timeout(self, timeout: Any) -> None:
            return None

    return LoneStore


# `isinstance(group, ProcessGroupGloo)` must be true for PyTorch's fake process group.
class _TakenForGloo(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _fake_group_type())

    def __getattr__(cls, name: str) -> Any:
        return getattr(import_module("torch._C._distributed_c10d").ProcessGroupGloo, name)


class _FakeGloo(metaclass=_TakenForGloo):
    def __new__(cls, store: Any, rank: int, size: int, *arguments: Any, **keywords: Any) -> Any:
        from torch.testing._internal.distributed.fake_pg import _create_fake_pg

        kind = _fake_group_type()
        if "Options" not in vars(kind):  # torch 2.8 stores the ranks of the group in its options
            return type("LoneGloo", (kind,), {"options": SimpleNamespace()})(rank, size)
        return _create_fake_pg(SimpleNamespace(group_rank=rank, group_size=size), kind.Options())


def _fake_group_type() -> Any:
    return import_module("torch._C._distributed_c10d").FakeProcessGroup
