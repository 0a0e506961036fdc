"""The GPU-memory toolkit for PyTorch: every public name, and the module that has it. `__init__.py` reads this list."""

from ullage._errors import EmulationError as EmulationError
from ullage._errors import IsolationError as IsolationError
from ullage._errors import ScriptError as ScriptError
from ullage._errors import TorchMissingError as TorchMissingError
from ullage._errors import UllageError as UllageError
from ullage._errors import UnknownGpuError as UnknownGpuError
from ullage._errors import UsageError as UsageError
from ullage.advice.advice import Advice as Advice
from ullage.analysis.explain import Explanation as Explanation
from ullage.api.advise import advise as advise
from ullage.api.diff import diff as diff
from ullage.api.explain import explain as explain
from ullage.api.explain import explain_ranks as explain_ranks
from ullage.api.fit import fit as fit
from ullage.api.fit_layout import fit_layout as fit_layout
from ullage.api.predict import predict as predict
from ullage.api.repro import repro as repro
from ullage.api.show import show as show
from ullage.api.show import write_page as write_page
from ullage.api.tune import tune as tune
from ullage.batching.sampler import TokenBudgetBatchSampler as TokenBudgetBatchSampler
from ullage.diagnosis.diagnosis import Diagnosis as Diagnosis
from ullage.diagnosis.diagnosis import diagnose as diagnose
from ullage.difference.difference import Difference as Difference
from ullage.emulator.emulate import Emulation as Emulation
from ullage.emulator.emulate import emulate as emulate
from ullage.fitting.fit import Fit as Fit
from ullage.fleet.fleet import FleetExplanation as FleetExplanation
from ullage.guard.guard import Guard as Guard
from ullage.isolation.isolated import isolated as isolated
from ullage.layouts.layout_fit import LayoutFit as LayoutFit
from ullage.monitor.monitor import Monitor as Monitor
from ullage.ownership.certificate import Certificate as Certificate
from ullage.ownership.holding import Holding as Holding
from ullage.ownership.holding import Holdings as Holdings
from ullage.ownership.owners import owners as owners
from ullage.ownership.release import release as release
from ullage.prediction.prediction import Prediction as Prediction
from ullage.reproduction.reproduction import Reproduction as Reproduction
from ullage.snapshot.snapshot import Snapshot as Snapshot
from ullage.snapshot.snapshot import load_snapshot as load_snapshot
from ullage.tuning.tune import Tuning as Tuning

__version__: str
