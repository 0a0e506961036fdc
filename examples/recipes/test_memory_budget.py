"""A test for continuous integration: training must need at most 6 GiB."""

import ullage


def test_training_needs_at_most_6_gib() -> None:
    prediction = ullage.predict("examples/train_gpt2.py", ["--batch-size", "4"], gpu="RTX 3060", steps=2)
    assert prediction.peak_reserved_bytes <= 6 << 30
