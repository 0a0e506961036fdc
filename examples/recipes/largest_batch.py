"""Find the largest batch size that fits."""

import ullage

fit = ullage.fit("examples/train_gpt2.py", gpu="RTX 3060", vary=["--batch-size=4..16"], changes=False)
print(fit.largest.best.value)
