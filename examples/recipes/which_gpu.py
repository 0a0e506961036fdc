"""Find the smallest of several GPUs on which a script fits."""

import ullage

for gpu in ("T4", "A10G", "A100 40GB"):
    prediction = ullage.predict("examples/train_gpt2.py", ["--batch-size", "16"], gpu=gpu, steps=2)
    print(gpu, prediction.verdict)
    if prediction.verdict == "fits":
        break
