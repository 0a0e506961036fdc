"""The questions, one module or package per family; `plan.py` has their order.

Each module has three functions:

* `questions()` returns the family's `Question`s. It does not import torch.
* `answer(question, gpu)` measures one of them, in a process of its own, and returns JSON data.
* `compare(real, emulated)` takes two answers to the same question and returns the `Figure`s to compare.

A module with `EMULATES_ITSELF = True` starts further processes, and gives each its GPU by `gpu.environment()`.
"""
