"""Train a small GPT and write what each step took and its peaks: `time_gpt_steps.py FILE STEPS EXIT_CODE`.

It prints some lines on both outputs, and ends with the exit code: whoever runs it compares these, too.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LAYERS, HEADS, TOKENS, VOCABULARY, BATCH = 512, 6, 8, 256, 8192, 8

figures, steps, exit_code = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
model = nn.ModuleDict(
    {
        "tokens": nn.Embedding(VOCABULARY, WIDTH),
        "layers": nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        "head": nn.Linear(WIDTH, VOCABULARY),
    }
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, device="cuda")
batches = torch.randint(VOCABULARY, (steps, BATCH, TOKENS + 1), device="cuda")
found = []
for number, batch in enumerate(batches):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = model["layers"](model["tokens"](batch[:, :-1]), mask=mask, is_causal=True)
        logits = model["head"](hidden)
    F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten()).backward()
    optimizer.step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    found.append({"seconds": seconds, "peak_allocated_bytes": peaks[0], "peak_reserved_bytes": peaks[1]})
    if number % 10 == 9:
        print(f"step {number + 1}: {peaks[0]:,} bytes at the peak", flush=True)
figures.write_text(json.dumps(found), encoding="utf-8")
print("trained; this line is on standard error", file=sys.stderr)
sys.exit(exit_code)
