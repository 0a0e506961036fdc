"""Scripts that leave device memory held, each by one culprit; tests/training/ownership/test_scenarios.py tries them."""
