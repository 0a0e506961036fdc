"""What a node has to have, by a prediction."""

import math

from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.job_request import JobNeeds
from ullage.predicting.prediction.request import Request


def needs_of(request: Request, prediction: Prediction) -> JobNeeds:
    """Take from a prediction what a node has to have."""
    host = prediction.host
    ranks = host.ranks_of_a_node if host is not None else 1
    return JobNeeds(
        script=request.name,
        gpu=prediction.gpu,
        card_bytes=prediction.total_memory_bytes,
        used_bytes=prediction.interval_bytes[1],
        fits=prediction.verdict.value == "fits",
        nodes=math.ceil((prediction.world_size or 1) / ranks),
        gpus=max(request.count, ranks),
        ranks=ranks,
        workers=host.workers if host is not None else 0,
        host_bytes=None if host is None else host.total_bytes,
        shared_memory_bytes=host.shared_memory_bytes * ranks if host is not None else 0,
    )
