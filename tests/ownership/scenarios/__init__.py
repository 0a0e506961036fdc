"""Scripts that leave device memory held, each by one culprit; tests/ownership/test_scenarios.py tries them."""
