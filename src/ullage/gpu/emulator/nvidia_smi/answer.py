"""Print nvidia-smi's output for the emulated GPUs. This program uses only the standard library.

`ULLAGE_EMULATED_CARD` describes the GPUs. `ULLAGE_EMULATED_USE` lists the processes that use them, as "PID:DESCRIPTOR
...". Each file descriptor leads to the process's memory use. The output formats are those that programs parse: the
table, -L, -q, and the queries as CSV.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20
DRIVER = "580.0"
CUDA = "13.0"
HELP = "Please run 'nvidia-smi -h' for help."
USAGE = """\
nvidia-smi of an emulated GPU (ullage). Supported options:
  nvidia-smi [-i ID,...]            the table
  nvidia-smi -L                     the names
  nvidia-smi -q [-d TYPE] [-i ID]   a short form
  nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits] [-i ID,...]
  nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits] [-i ID,...]
  -l SECONDS and -lms MILLISECONDS repeat, -f FILE writes into a file"""
_BYTES_OF_NUMBER = 8


class SmiError(Exception):
    """Ends the emulated nvidia-smi with one line and an exit code, as the real program does."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class User:
    """A process that uses an emulated GPU."""

    pid: int
    used_bytes: int


@dataclass(frozen=True)
class Card:
    """An emulated GPU, as nvidia-smi shows it."""

    index: int
    name: str
    total_bytes: int
    capability: str
    users: tuple[User, ...]

    @property
    def used_bytes(self) -> int:
        """The memory that all processes together use on this GPU, in bytes."""
        return min(self.total_bytes, sum(user.used_bytes for user in self.users))

    @property
    def uuid(self) -> str:
        """The UUID of the emulated GPU, as the emulated NVML returns it."""
        return f"GPU-756c6c61-6765-0000-0000-{self.index:012x}"

    @property
    def bus(self) -> str:
        """The PCI bus ID of the emulated GPU, as the emulated NVML accepts it."""
        return f"00000000:{self.index + 1:02X}:00.0"


# ---- the GPUs


def cards_of(environment: Mapping[str, str]) -> list[Card]:
    """Return the emulated GPUs, as the environment variables describe them.

    Raises:
        SmiError: the environment variables describe no GPU.
    """
    try:
        told = json.loads(environment["ULLAGE_EMULATED_CARD"])
    except (KeyError, ValueError):
        raise SmiError(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver: this process has no "
            "emulated GPU.",
            9,
        ) from None
    used = _used(environment.get("ULLAGE_EMULATED_USE", ""), told["count"])
    figures = told["figures"]
    return [
        Card(
            index=index,
            name=told["gpu"],
            total_bytes=told["total_memory_bytes"],
            capability=f"{figures['cc_major']}.{figures['cc_minor']}",
            users=tuple(
                User(pid=pid, used_bytes=of_cards[index] + told["context_bytes"])
                for pid, of_cards in used
                if of_cards[index]
            ),
        )
        for index in range(told["count"])
    ]


def _used(text: str, count: int) -> list[tuple[int, list[int]]]:
    found = []
    for part in text.split():
        pid, _, descriptor = part.partition(":")
        path = f"/proc/{pid}/fd/{descriptor}"
        try:
            if not os.readlink(path).startswith("/memfd:ullage-card"):
                continue  # The process has closed ullage's descriptor, and opened another file.
            with open(path, "rb") as file:
                data = file.read(_BYTES_OF_NUMBER * count)
        except OSError:
            continue
        numbers = [
            int.from_bytes(data[at : at + _BYTES_OF_NUMBER], sys.byteorder)
            for at in range(0, _BYTES_OF_NUMBER * count, _BYTES_OF_NUMBER)
        ]
        found.append((int(pid), numbers))
    return found


def _chosen(cards: Sequence[Card], text: str | None) -> list[Card]:
    if text is None:
        return list(cards)
    chosen = []
    for name in text.split(","):
        names = {name.strip(), name.strip().upper()}
        found = [card for card in cards if names & {str(card.index), card.uuid, card.bus, card.bus[4:]}]
        if not found:
            raise SmiError("No devices were found", 6)
        chosen += found
    return chosen


# ---- queries


def _mib(size: int) -> str:
    return str(size // MIB)


_NO_UNIT: dict[str, Callable[[Card], str]] = {
    "index": lambda card: str(card.index),
    "name": lambda card: card.name,
    "gpu_name": lambda card: card.name,
    "uuid": lambda card: card.uuid,
    "gpu_uuid": lambda card: card.uuid,
    "pci.bus_id": lambda card: card.bus,
    "gpu_bus_id": lambda card: card.bus,
    "pci.domain": lambda card: "0x0000",
    "pci.bus": lambda card: f"0x{card.index + 1:02X}",
    "pci.device": lambda card: "0x00",
    "driver_version": lambda card: DRIVER,
    "compute_cap": lambda card: card.capability,
    "timestamp": lambda card: time.strftime("%Y/%m/%d %H:%M:%S.000"),
    "pstate": lambda card: "P0",
    "persistence_mode": lambda card: "Enabled",
    "compute_mode": lambda card: "Default",
    "display_active": lambda card: "Disabled",
    "display_mode": lambda card: "Disabled",
    "temperature.gpu": lambda card: "30",
}
_WITH_UNIT: dict[str, tuple[str, Callable[[Card], str]]] = {
    "memory.total": ("MiB", lambda card: _mib(card.total_bytes)),
    "memory.used": ("MiB", lambda card: _mib(card.used_bytes)),
    "memory.free": ("MiB", lambda card: _mib(card.total_bytes - card.used_bytes)),
    "memory.reserved": ("MiB", lambda card: "0"),
    "utilization.gpu": ("%", lambda card: "0"),
    "utilization.memory": ("%", lambda card: "0"),
}
_NOT_KNOWN = (
    *("serial", "gpu_serial", "vbios_version", "fan.speed", "temperature.memory", "temperature.gpu.tlimit"),
    *("mig.mode.current", "mig.mode.pending", "ecc.mode.current", "ecc.mode.pending", "accounting.mode"),
    *("inforom.img", "driver_model.current", "addressing_mode", "pci.sub_device_id", "pci.device_id"),
)
_NOT_KNOWN_FAMILIES = ("power.", "clocks", "pcie.", "ecc.errors.", "utilization.", "encoder.")
_OF_APPS: dict[str, tuple[str, Callable[[Card, User], str]]] = {
    "timestamp": ("timestamp", lambda card, user: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "gpu_name": ("gpu_name", lambda card, user: card.name),
    "gpu_bus_id": ("gpu_bus_id", lambda card, user: card.bus),
    "gpu_uuid": ("gpu_uuid", lambda card, user: card.uuid),
    "gpu_serial": ("gpu_serial", lambda card, user: "[N/A]"),
    "pid": ("pid", lambda card, user: str(user.pid)),
    "process_name": ("process_name", lambda card, user: _program(user.pid)),
    "name": ("process_name", lambda card, user: _program(user.pid)),
    "used_memory": ("used_gpu_memory [MiB]", lambda card, user: f"{_mib(user.used_bytes)} MiB"),
    "used_gpu_memory": ("used_gpu_memory [MiB]", lambda card, user: f"{_mib(user.used_bytes)} MiB"),
}


def query_gpu(fields: str, how: str | None, cards: Sequence[Card]) -> str:
    """Return the output of `nvidia-smi --query-gpu`."""
    columns = [_field(name.strip(), len(cards)) for name in fields.split(",")]
    return _csv([title for title, _ in columns], [[tell(card) for _, tell in columns] for card in cards], how)


def query_apps(fields: str, how: str | None, cards: Sequence[Card]) -> str:
    """Return the output of `nvidia-smi --query-compute-apps`."""
    try:
        columns = [_OF_APPS[name.strip()] for name in fields.split(",")]
    except KeyError as error:
        raise _no_field(str(error.args[0])) from None
    rows = [[tell(card, user) for _, tell in columns] for card in cards for user in card.users]
    return _csv([title for title, _ in columns], rows, how)


def _field(name: str, count: int) -> tuple[str, Callable[[Card], str]]:
    if name == "count":
        return name, lambda card: str(count)
    if name in _NO_UNIT:
        return name, _NO_UNIT[name]
    if name in _WITH_UNIT:
        unit, tell = _WITH_UNIT[name]
        return f"{name} [{unit}]", lambda card: f"{tell(card)} {unit}"
    if name in _NOT_KNOWN or name.startswith(_NOT_KNOWN_FAMILIES):
        return name, lambda card: "[N/A]"
    raise _no_field(name)


def _no_field(name: str) -> SmiError:
    return SmiError(f'Field "{name}" is not a valid field to query.\n', 2)


def _csv(titles: Sequence[str], rows: Sequence[Sequence[str]], how: str | None) -> str:
    options = {part.strip() for part in (how or "").split(",")}
    if "csv" not in options or options - {"csv", "noheader", "nounits"}:
        wrong = "is missing" if how is None else f'value "{how}" is not valid'
        raise SmiError(f'"--format=" switch {wrong}. {HELP}', 1)
    if "nounits" in options:
        rows = [[_without_unit(cell) for cell in row] for row in rows]
    lines = [] if "noheader" in options else [", ".join(titles)]
    return "\n".join([*lines, *(", ".join(row) for row in rows)])


def _without_unit(cell: str) -> str:
    number, _, unit = cell.partition(" ")
    return number if unit in ("MiB", "%") else cell


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return "[Not Found]"


# ---- output for people


def table(cards: Sequence[Card]) -> str:
    """Return the output of `nvidia-smi` without options."""
    rule = f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+"
    head = f"NVIDIA-SMI {DRIVER} (emulated)".ljust(34) + f"Driver Version: {DRIVER}".ljust(31)
    lines = [
        time.strftime("%a %b %d %H:%M:%S %Y"),
        f"+{'-' * 89}+",
        f"| {head + f'CUDA Version: {CUDA}':<88}|",
        rule,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        f"|{'=' * 41}+{'=' * 24}+{'=' * 22}|",
    ]
    for card in cards:
        memory = f"{_mib(card.used_bytes)}MiB / {_mib(card.total_bytes):>6}MiB"
        lines += [
            f"|{card.index:>4}  {card.name[:30]:<30}{'On':>3}  |   {card.bus} Off |{'N/A':>21} |",
            f"| N/A   30C    P0{'N/A /  N/A':>23}  |{memory:>23} |{'0%':>9}{'Default':>12} |",
            rule,
        ]
    lines += ["", f"+{'-' * 89}+", f"| {'Processes:':<88}|"]
    lines += [f"|{'  GPU   GI   CI              PID   Type   Process name':<78}{'GPU Memory':>10} |", f"|{'=' * 89}|"]
    users = [(card, user) for card in cards for user in card.users]
    for card, user in users:
        start = f"{card.index:>5}   N/A  N/A{user.pid:>17}      C   {_program(user.pid)[-35:]}"
        lines.append(f"|{start:<78}{_mib(user.used_bytes) + 'MiB':>10} |")
    if not users:
        lines.append(f"|{'  No running processes found':<89}|")
    return "\n".join([*lines, f"+{'-' * 89}+"])


def names(cards: Sequence[Card]) -> str:
    """Return the output of `nvidia-smi -L`."""
    return "\n".join(f"GPU {card.index}: {card.name} (UUID: {card.uuid})" for card in cards)


def details(cards: Sequence[Card]) -> str:
    """Return the output of `nvidia-smi -q` in a short form."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += _pairs(0, ("Timestamp", time.ctime()), ("Driver Version", f"{DRIVER} (emulated)"), ("CUDA Version", CUDA))
    lines += ["", *_pairs(0, ("Attached GPUs", str(len(cards))))]
    for card in cards:
        sizes = (("Total", card.total_bytes), ("Used", card.used_bytes), ("Free", card.total_bytes - card.used_bytes))
        lines += [
            f"GPU {card.bus}",
            *_pairs(4, ("Product Name", card.name), ("GPU UUID", card.uuid), ("Persistence Mode", "Enabled")),
            "    PCI",
            *_pairs(8, ("Bus Id", card.bus)),
            "    FB Memory Usage",
            *_pairs(8, *((name, f"{_mib(size)} MiB") for name, size in sizes)),
            "    Utilization",
            *_pairs(8, ("GPU", "0 %"), ("Memory", "0 %")),
            *_pairs(4, ("Compute Mode", "Default")),
            "    Processes" if card.users else "    Processes                             : None",
        ]
        for user in card.users:
            lines += _pairs(8, ("Process ID", str(user.pid)), ("Used GPU Memory", f"{_mib(user.used_bytes)} MiB"))
    return "\n".join(lines)


def _pairs(indent: int, *pairs: tuple[str, str]) -> list[str]:
    return [f"{' ' * indent}{name}".ljust(42) + f": {value}" for name, value in pairs]


# ---- the command

_VALUE_OPTIONS = {
    "-i": "id",
    "--id": "id",
    "--query-gpu": "gpu",
    "--query-compute-apps": "apps",
    "--format": "format",
    "-d": "display",
    "--display": "display",
    "-l": "seconds",
    "--loop": "seconds",
    "-lms": "milliseconds",
    "--loop-ms": "milliseconds",
    "-f": "file",
    "--filename": "file",
}
_FLAGS = {"-L": "names", "--list-gpus": "names", "-q": "details", "--query": "details", "-h": "help", "--help": "help"}
_SETTINGS = ("-pm", "-pl", "-c", "-e", "-r", "-ac", "-rac", "-lgc", "-rgc", "-lmc", "-rmc", "-mig", "--gpu-reset")


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """Parse the arguments of nvidia-smi.

    Raises:
        SmiError: an argument is unknown.
    """
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in _FLAGS and not equals:
            found[_FLAGS[name]] = ""
        elif name in _VALUE_OPTIONS:
            if not equals and not rest:
                raise SmiError(f"Option {name} requires an argument. {HELP}", 1)
            found[_VALUE_OPTIONS[name]] = value if equals else rest.pop(0)
        elif name in _SETTINGS:
            raise SmiError("Unable to change the settings of a GPU: Insufficient Permissions", 4)
        else:
            raise SmiError(f"Invalid combination of input arguments. {HELP}", 1)
    return found


def answer(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the output of nvidia-smi for these arguments.

    Raises:
        SmiError: nvidia-smi would end with an error.
    """
    options = options_of(arguments)
    if "help" in options:
        return USAGE
    cards = _chosen(cards_of(environment), options.get("id"))
    if "gpu" in options:
        return query_gpu(options["gpu"], options.get("format"), cards)
    if "apps" in options:
        return query_apps(options["apps"], options.get("format"), cards)
    return names(cards) if "names" in options else details(cards) if "details" in options else table(cards)


def _pause(arguments: Sequence[str]) -> float | None:
    options = options_of(arguments)
    try:
        if "milliseconds" in options:
            return float(options["milliseconds"]) / 1000
        return float(options["seconds"]) if "seconds" in options else None
    except ValueError:
        raise SmiError(f"Invalid loop value. {HELP}", 1) from None


def main() -> None:
    """Run the emulated nvidia-smi."""
    arguments = sys.argv[1:]
    try:
        pause, file = _pause(arguments), options_of(arguments).get("file")
        while True:
            text = answer(arguments, os.environ)
            if file:
                with open(file, "a") as out:
                    print(text, file=out)
            else:
                print(text, flush=True)
            if pause is None:
                return
            time.sleep(pause)
    except SmiError as error:
        print(error)
        sys.exit(error.code)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


if __name__ == "__main__":
    main()
