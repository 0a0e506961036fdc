"""`@pytest.mark.gpu_memory`: a test's memory on an emulated card or the real one, judged."""
