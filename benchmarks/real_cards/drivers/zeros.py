"""Make the checkpoint of a model from its figures alone, all of it zeros, then run a script that loads it from there.

    python zeros.py ORDER MODEL FOLDER SCRIPT [ARGUMENTS]

ORDER is that of the threads that load weights: "any", or one of `pace.keep`. MODEL is JSON: a `model_type` of
transformers and the fields of its configuration. FOLDER is made, and is what the script loads by `from_pretrained`,
unmodified. The file of weights has holes and takes no room on the disk.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Final

_BYTES: Final = 2  # a weight is stored in 16 bits, as it was published
_KIND: Final = "BF16"


def make_checkpoint(model: dict[str, object], folder: Path) -> dict[str, int]:
    """Write the configuration and the weights, and return how many bytes each has."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model(**model)
    config.architectures = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    tied = "lm_head.weight" if config.tie_word_embeddings else None
    at, header, sizes = 0, {}, {}
    for name, weight in made.state_dict().items():
        if name == tied:
            continue
        end = at + weight.numel() * _BYTES
        header[name] = {"dtype": _KIND, "shape": list(weight.shape), "data_offsets": [at, end]}
        sizes[name] = end - at
        at = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        os.truncate(file.fileno(), 8 + len(text) + at)
    return sizes


def main() -> None:
    """Make the checkpoint and run the script."""
    order, model, folder, script, *arguments = sys.argv[1:]
    weights = make_checkpoint(json.loads(model), Path(folder))
    if order != "any":
        import pace

        pace.keep(weights, order)
    sys.path[0] = str(Path(script).resolve().parent)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
