"""The GPU memory toolkit for PyTorch. This file lists every public name and the module that defines it; `__init__.py`
reads the list.
"""

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
from ullage.base.engines.engine import EngineError as EngineError
from ullage.base.errors import EmulationError as EmulationError
from ullage.base.errors import IsolationError as IsolationError
from ullage.base.errors import ScriptError as ScriptError
from ullage.base.errors import ScriptKilledError as ScriptKilledError
from ullage.base.errors import TorchMissingError as TorchMissingError
from ullage.base.errors import UllageError as UllageError
from ullage.base.errors import UnknownGpuError as UnknownGpuError
from ullage.base.errors import UsageError as UsageError
from ullage.base.errors import ValuesError as ValuesError
from ullage.base.own_files import SharedFolderError as SharedFolderError
from ullage.explaining.analysis.explain import Explanation as Explanation
from ullage.explaining.difference.difference import Difference as Difference
from ullage.explaining.fleet.fleet import FleetExplanation as FleetExplanation
from ullage.explaining.reproduction.reproduction import Reproduction as Reproduction
from ullage.explaining.tuning.tune import Tuning as Tuning
from ullage.gpu.emulator.emulate import Emulation as Emulation
from ullage.gpu.emulator.emulate import emulate as emulate
from ullage.predicting.advice.advice import Advice as Advice
from ullage.predicting.fitting.fit import Fit as Fit
from ullage.predicting.layouts.layout_fit import LayoutFit as LayoutFit
from ullage.predicting.prediction.data.prediction import Prediction as Prediction
from ullage.recorded.settings import SettingsError as SettingsError
from ullage.recorded.snapshot.file import SnapshotError as SnapshotError
from ullage.recorded.snapshot.snapshot import Snapshot as Snapshot
from ullage.recorded.snapshot.snapshot import load_snapshot as load_snapshot
from ullage.running.diagnosis.diagnosis import Diagnosis as Diagnosis
from ullage.running.diagnosis.diagnosis import diagnose as diagnose
from ullage.training.batching.sampler import TokenBudgetBatchSampler as TokenBudgetBatchSampler
from ullage.training.guard.guard import Guard as Guard
from ullage.training.guard.ranks import RankError as RankError
from ullage.training.isolation.isolated import isolated as isolated
from ullage.training.monitor.monitor import Monitor as Monitor
from ullage.training.ownership.holding import Holding as Holding
from ullage.training.ownership.holding import Holdings as Holdings
from ullage.training.ownership.owners import owners as owners
from ullage.training.ownership.release import Certificate as Certificate
from ullage.training.ownership.release import release as release

__version__: str
