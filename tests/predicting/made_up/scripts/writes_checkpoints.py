"""Compare the files of holes with those that the libraries write of real tensors."""

import os
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM, MobileNetV2Model

from ullage.base.own_files import OwnFolder
from ullage.predicting.made_up.repository import MadeUpRepository
from ullage.predicting.made_up.transformers_library import write_checkpoint

CONFIGS = {
    LlamaForCausalLM: {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    GPT2LMHeadModel: {"n_embd": 64, "n_layer": 2, "n_head": 4},  # its last layer is its first
    BertForMaskedLM: {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    MobileNetV2Model: {"depth_multiplier": 0.35},  # buffers that are saved, of two types
}
for cls, values in CONFIGS.items():
    config = cls.config_class(**values, architectures=[cls.__name__])
    real, made = Path(f"real-{cls.__name__}"), Path(f"made-{cls.__name__}").absolute()
    model = cls(config)
    model.save_pretrained(real)
    with OwnFolder.make(made) as folder:
        repository = MadeUpRepository(folder, "someone/model", config.to_dict(), "a test")
        repository.write("config.json", config.to_json_string())
        parameters, name = write_checkpoint(repository, AutoModel)
    assert name == cls.__name__
    assert parameters == sum(each.numel() for each in model.parameters())
    assert {each.name for each in made.iterdir()} == {each.name for each in real.iterdir()}
    with safe_open(real / "model.safetensors", "pt") as one, safe_open(made / "model.safetensors", "pt") as other:
        assert list(one.keys()) == list(other.keys())
        assert list(one.offset_keys()) == list(other.offset_keys())
        for key in one.keys():  # noqa: SIM118  # it is no dictionary
            assert one.get_tensor(key).shape == other.get_tensor(key).shape
            assert one.get_tensor(key).dtype == other.get_tensor(key).dtype
        assert one.metadata() == other.metadata()
    assert type(model).from_pretrained(made).num_parameters() == parameters

# Large ones take no room.
config = AutoConfig.for_model("llama", hidden_size=8192, num_hidden_layers=2, architectures=["LlamaForCausalLM"])
with OwnFolder.make(Path("large").absolute()) as folder:
    repository = MadeUpRepository(folder, "someone/large", config.to_dict(), "a test")
    repository.write("config.json", config.to_json_string())
    write_checkpoint(repository, AutoModel)
sizes = [os.stat(path) for path in Path("large").glob("*.safetensors")]
assert sum(each.st_size for each in sizes) > 4 << 30
assert sum(512 * each.st_blocks for each in sizes) < 1 << 20, [each.st_blocks for each in sizes]
assert torch.get_default_dtype() == torch.float32
