"""Find the change with which a script fits, and get it as a diff."""

import ullage

advice = ullage.advise("examples/train_gpt2.py", ["--batch-size", "12"], gpu="RTX 3060")
if advice.written:
    print(advice.best.combination.title)
    print(advice.written.diff)
