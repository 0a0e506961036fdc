"""Secrets of a command and of an environment: nothing of them is in what is written, and other words stay readable."""

import json
import re
import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.security.forms import NAMES, Form, forms
from ullage.base.secrets import SourceCode, hidden_data, hidden_text, told_environment, without_secrets
from ullage.cli.run import name_of

FORMS = list(forms())
READABLE = """
--max-tokens 512 | --max_new_tokens 128 | --tokenizer gpt2 | --tokenizer_name meta-llama/Llama-3-8B | --tokens 4096
--num-key-value-heads 8 | --num_key_value_heads=8
 --key-dim 64 | --key_dim=64 | --value-dim 64 | --query-key-norm
--author me | --authors a b | --token-dim 256 | --token-level-loss | --token-dropout 0.1 | --tokens-per-batch 8192
--pad-token <pad> | --eos_token </s> | --bos-token <s> | --mask-token [MASK] | --cls_token [CLS] | --special-tokens a b
--pad_token_id 0 | --eos-token-id 2 | --placeholder_token <cat-toy> | --initializer_token toy | --image-token <image>
--text-key text | --image_key jpg | --label-key cls | --input_key prompt | --output_key answer | --json-keys text title
--sort-key length | data.prompt_key=prompt | data.reward_fn_key=data_source | --train-tokens 300B | --total-tokens 1e12
--passes 3 | --num-passes 2 | --two-pass data.bin | --single_pass train.txt | --bypass-gate | --pass-through x
--pin-memory | --pin_memory=true | --signal-rate 16000 | --sigma 0.5 | --sigmoid | --path /data/x | --patience 5
--patch-size 16 | --pattern *.jpg | --batch-size 8 | --lr 3e-4 | --seed 42 | --bf16 | --fp16-opt-level O2
--model sk-resnet50 | --model hf_hub:timm/resnet50 | --model hf-internal-testing/tiny-random-gpt2 | --resume last.pt
--model_name_or_path microsoft/phi-2 | --revision 2ef0f0a4a5e3f1a9a0e0b1c2d3e4f5a6b7c8d9e0 | --dataset c4:en
--data s3://bucket/path/part-0001.parquet | --data https://host.example/x?split=train&lang=en | http://localhost:29500
--rdzv-endpoint node0:29500 | --rdzv_backend c10d | --master_addr 10.0.0.1 | --output_dir=runs/2026-11-24_12:30:00
git+https://github.com/o/r@main | image@sha256:2ef0f0a4a5e3f1a9 | --lora-target q_proj,k_proj,v_proj | --attn sdpa
{"lr": 0.1, "max_tokens": 512, "key_dim": 64} | model.d_model=512 | +trainer.devices=8 | optimizer.betas=[0.9,0.95]
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,roundup_power2_divisions:[256:1,>:8] | train.py:33 | --keyframes 4
--deepspeed ds_config_zero3.json | --report_to wandb | --keep-last 3 | --hotkey-config x | --compass north
"""
LINES = [line.strip() for row in READABLE.strip().splitlines() for line in row.split(" | ")]


def test_there_are_forms_enough() -> None:
    assert len(FORMS) >= 350
    assert len(LINES) >= 80


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.secret)
def test_a_secret_is_not_told(form: Form) -> None:
    """Alone, between other words, and with the whole command as one word for a shell."""
    assert form.secret in " ".join(form.words)
    shown = without_secrets(["python", "train.py", *form.words, "--lr", "0.1"])
    assert form.secret not in " ".join(shown)
    assert shown[:2] == ("python", "train.py")
    assert without_secrets(shown) == shown, "what is hidden stays as it is"
    assert form.secret not in " ".join(without_secrets(["sh", "-c", shlex.join(form.words)]))


@pytest.mark.parametrize("line", LINES)
def test_other_words_stay_readable(line: str) -> None:
    words = line.split(" ") if not line.startswith("{") else [line]
    assert without_secrets(["train.py", *words, "--epochs", "3"]) == ("train.py", *words, "--epochs", "3")


def test_other_words_stay_readable_together() -> None:
    words = [word for line in LINES if not line.startswith("{") for word in line.split(" ")]
    assert without_secrets(words) == tuple(words)


@given(
    st.sampled_from(NAMES),
    st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=_-.~!*#%$^()[]{}<>?|;,@&", min_size=12),
)
def test_a_value_of_any_letters_is_hidden(name: str, secret: str) -> None:
    """After a name, whatever letters it has; a value of two dashes and small letters would be the next option."""
    assume(not re.fullmatch(r"[-+\d_,.eEkKmMbBgGtTi]*", secret))  # a figure may be a count
    if re.match(r"--[a-z]", secret):
        secret = f"X{secret}"
    for words in ([f"--{name}", secret], [f"--{name}={secret}"], [f"{name}={secret}"], [json.dumps({name: secret})]):
        shown = " ".join(without_secrets(words))
        assert secret not in shown
        assert json.dumps(secret)[1:-1] not in shown


@pytest.mark.parametrize(
    "letter", ["a:", "://", "sk-", "token=", "-----BEGIN A-----", '\\"token\\": ', "--token ", "a[b]/", "u:bbb@"]
)
def test_the_time_is_as_the_length(letter: str) -> None:
    """Four times the letters take no more than about four times as long: nobody's file can hold a report up."""
    import time

    def seconds(count: int) -> float:
        began = time.process_time()
        hidden_text.__wrapped__(letter * count)
        without_secrets([letter * count])
        return time.process_time() - began

    seconds(500)
    assert min(seconds(4000) for _ in range(2)) < 0.1 + 12 * min(seconds(1000) for _ in range(2))


def test_of_an_environment_only_settings_are_told() -> None:
    """By the name, and by what the value looks like."""
    told = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "NCCL_BUFFSIZE": "4194304", "CUDA_VISIBLE_DEVICES": "0,1"}
    secret = {
        "HF_TOKEN": "x",
        "CUDA_MY_PASSWORD": "x",
        "NCCL_AUTHX": "x",
        "TORCH_PASS": "x",
        "TORCH_HOME": "https://user:x@host/x",
        "PYTORCH_URL": "https://h/x?X-Amz-Signature=x",
        "NCCL_DEBUG": "https://user:SECRET@host/x",
        "CUDA_MODULE_LOADING": "token=SECRET",
        "RANK": "ghp_SECRETSECRET",
        "WORLD_SIZE": "-----BEGIN PRIVATE KEY-----\nSECRET",
    }
    assert told_environment(told | secret) == told


def test_texts_of_an_answer_are_looked_through() -> None:
    """Its fields are ours: a cause has a `key`."""
    data = {
        "arguments": ["--lr", "1"],
        "notes": ["see https://u:SECRET@host/x", "12:30:00 step 3: 512 tokens"],
        "key": "fragmented",
        "lines": [("train.py", 3)],
    }
    assert hidden_data(data) == data | {"notes": ["see https://***@host/x", data["notes"][1]]}


def test_a_line_for_a_shell_does_not_name_the_folder() -> None:
    """The folder is called after the script; of `bash -c '... train.py'` the whole line would be in its name."""
    assert name_of(["bash", "-c", "HF_TOKEN=SECRET python train.py"]) == "bash"
    assert name_of(["torchrun", "--nproc-per-node", "2", "src/train.py", "--lr", "1"]) == "train"
    assert name_of(["-m", "package.train"]) == "package.train"
    assert name_of(["sub/token=SECRET.py"]) == "token____"
    assert name_of(["a b\x1b[31m.py"]) == "a_b__31m.py"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('tokens = torch.randint(0, 9, (4,)).to("cuda")', None),
        ('hf_token = os.environ["HF_TOKEN"]', None),
        ('tokenizer = "gpt2"', None),
        ('+api_key = "abc-def-ghi-jkl"', '+api_key = "***"'),
        ('-login(token="hf_abcdefghijklmnopqrstuvwx", add=True)', '-login(token="***", add=True)'),
        ("password = 'hunter2'; x = \"cuda\"", "password = '***'; x = \"cuda\""),
    ],
)
def test_of_source_only_what_is_written_out_is_hidden(line: str, shown: str | None) -> None:
    """A diff is there to be applied: a name beside an expression is no secret."""
    source = SourceCode(f"a = 1\n{line}\nb = 2\n")
    assert hidden_data({"diff": source}) == {"diff": f"a = 1\n{shown or line}\nb = 2\n"}
