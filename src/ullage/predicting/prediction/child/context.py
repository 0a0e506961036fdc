"""What a run has from its beginning to its end: the request, the emulated card, the journal, the channel, and notes."""

from dataclasses import dataclass, field

from ullage.gpu.emulator.emulate import Emulation
from ullage.gpu.emulator.torch_build import TorchBuild
from ullage.gpu.tracing.journal import Journal
from ullage.predicting.prediction.child.channel import Channel
from ullage.predicting.prediction.host.meter import HostMeter
from ullage.predicting.prediction.request import ChildRequest


@dataclass(slots=True, kw_only=True)
class RunContext:
    """What every part of a run works with."""

    request: ChildRequest
    channel: Channel
    journal: Journal
    emulation: Emulation
    torch: TorchBuild
    """The torch that is installed."""
    notes: list[str] = field(default_factory=list)
    """Sentences that the reader of the prediction has to know."""
    meter: HostMeter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = HostMeter(self.journal)
