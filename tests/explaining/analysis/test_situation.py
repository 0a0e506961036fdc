"""The phase and the statement in a traceback decide the advice, and tracebacks of every form are read."""

import pytest

from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text
from ullage.explaining.analysis.text.phase import FailurePhase
from ullage.explaining.analysis.text.situation import situation_of
from ullage.recorded.message.log import find_messages
from ullage.recorded.message.traceback import without_prefix

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB. GPU 0 has a total capacity of 14.56 GiB "
    "of which 498.81 MiB is free. Including non-PyTorch memory, this process has 14.08 GiB memory in use. Of the "
    "allocated memory 13.73 GiB is allocated by PyTorch, and 237.41 MiB is reserved by PyTorch but unallocated."
)


def failed_at(*frames: tuple[str, str, str]) -> TextExplanation:
    """Explain a traceback whose frames are (file, function, statement), the outermost first."""
    rows = ["Traceback (most recent call last):"]
    for file, function, statement in frames:
        rows += [f'  File "{file}", line 9, in {function}', f"    {statement}"]
    return explain_text("\n".join([*rows, OOM]))


def advice(explained: TextExplanation) -> str:
    return " ".join(f"{remedy.name} {remedy.remark}" for remedy in explained.remedies)


SITE = "/v/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("statement", "phase", "words"),
    [
        ("model = AutoModel.from_pretrained(name)", FailurePhase.LOADING, "a smaller batch does not help"),
        ('state = torch.load("last.pt", map_location="cuda")', FailurePhase.LOADING, "map_location='cpu'"),
        ("model.to(device)", FailurePhase.LOADING, "quantization"),
        ("loss.backward()", FailurePhase.BACKWARD, "activation checkpointing"),
        ("self.optimizer.step()", FailurePhase.OPTIMIZER, "8-bit AdamW"),
        ("out = model.generate(**inputs)", FailurePhase.GENERATION, "KV cache"),
        ("image = vae.decode(latents)", FailurePhase.DECODING, "tiles"),
        ("metrics = trainer.evaluate()", FailurePhase.EVALUATION, "checkpointing saves nothing"),
        ("torch.save(model.state_dict(), path)", FailurePhase.GATHERING, "on the CPU"),
    ],
)
def test_a_statement_shows_the_phase(statement: str, phase: FailurePhase, words: str) -> None:
    explained = failed_at(("/w/app.py", "<module>", statement))
    assert situation_of(explained.found).phase is phase
    assert words in advice(explained)


def test_the_innermost_sign_decides() -> None:
    """An evaluation within training is an evaluation; a closure's forward pass is not the optimizer's."""
    evaluation = failed_at(
        ("/w/app.py", "<module>", "trainer.train()"),
        (f"{SITE}/transformers/trainer.py", "evaluation_loop", "loss = self.prediction_step(model, inputs)"),
        (f"{SITE}/torch/nn/modules/module.py", "_call_impl", "return forward_call(*args, **kwargs)"),
    )
    assert situation_of(evaluation.found).phase is FailurePhase.EVALUATION
    closure = failed_at(
        (f"{SITE}/lightning/loops/optimization.py", "run", "self.optimizer.step(closure)"),
        ("/w/net.py", "training_step", "loss = self(batch)"),
    )
    assert situation_of(closure.found).phase is FailurePhase.FORWARD


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("logits = logits.to(torch.float32)", "the logits"),
        ("attn = torch.matmul(q, k.transpose(-1, -2)).softmax(-1)", "the attention scores"),
        ("d = torch.cdist(x, y)", "the distances of all pairs"),
        ("x = F.interpolate(x, scale_factor=8)", "the enlarged image"),
    ],
)
def test_one_large_request_names_its_tensor(statement: str, words: str) -> None:
    assert words in failed_at(("/w/net.py", "forward", statement)).remedies[0].remark


def test_the_share_is_of_the_true_peak() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.90 GiB. GPU 0 has a total capacity of 15.77 "
        "GiB of which 14.80 GiB is free. Including non-PyTorch memory, this process has 980.00 MiB memory in use. Of "
        "the allocated memory 490.00 MiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
    )
    assert "use at least 0.5 % less memory" in advice(explain_text(text))


CELLS = {
    "Kaggle": ("/tmp/ipykernel_36/773422404.py in <cell line: 0>()", "a notebook cell, line 14"),
    "Colab": ("<ipython-input-12-205e84709bc8> in <cell line: 0>()", "Cell In[12], line 14"),
    "IPython 8": ("Cell In[5], line 14", "Cell In[5], line 14"),
}


@pytest.mark.parametrize(("head", "place"), CELLS.values(), ids=CELLS)
def test_the_line_of_a_notebook_cell_is_found(head: str, place: str) -> None:
    library = "/usr/local/lib/python3.11/dist-packages/torch/nn/modules/module.py in _call_impl(self, *args, **kwargs)"
    text = (
        "OutOfMemoryError                          Traceback (most recent call last)\n"
        f"{head}\n     13 with torch.no_grad():\n---> 14     logits = model(x)\n     15     print(logits)\n\n"
        f"{library}\n-> 1750             return forward_call(*args, **kwargs)\n\n{OOM.removeprefix('torch.')}"
    )
    explained = explain_text(text)
    assert explained.failing_line == place
    assert explained.found.statement == "logits = model(x)"
    assert situation_of(explained.found).phase is FailurePhase.EVALUATION


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("my-comfyui-1  | ", None),
        ("2026-02-03T10:11:12.1234568Z ", None),
        ("2025-10-21T21:30:15.461837 - ", None),
        ("[2026-11-19, 10:31:40 UTC] {app.py:12} INFO - ", None),
        ("Nov 19 10:31:40 node7 python[123]: ", None),
        ("[rank3]: ", "rank3"),
        ("(EngineCore_DP0 pid=214) ERROR 09-01 12:00:00 [core.py:936] ", "EngineCore_DP0 pid=214"),
        ("[2026-07-01 09:31:38 DP1 TP0] ", "DP1 TP0"),
    ],
)
def test_the_prefix_of_a_log_is_not_a_part_of_the_statement(prefix: str, rank: str | None) -> None:
    rows = ["Traceback (most recent call last):", '  File "/w/vae.py", line 41, in forward', "    x = F.pad(x, p)", OOM]
    [found] = find_messages("\n".join(prefix + row for row in rows))
    assert (found.rank, found.place, found.statement) == (rank, "w/vae.py:41", "x = F.pad(x, p)")
    assert without_prefix(prefix + "text")[0] == rank


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        ("OSError: El archivo de paginación es demasiado pequeño. (os error 1455)", Cause.COMMIT_LIMIT, "Windows"),
        ("OSError: Cannot allocate memory (os error 12)", Cause.HOST_MEMORY, "Host memory"),
        (
            'Traceback (most recent call last):\n  File "/w/a.py", line 1, in <module>\n    torch.cuda.set_device(0)\n'
            "torch.AcceleratorError: CUDA error: out of memory",
            Cause.OTHER_PROCESS,
            "first CUDA call",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", Cause.JOB_LIMIT, "Slurm job"),
        (
            "NvMapMemAllocInternalTagged: 1075072515 error 12\ntorch.AcceleratorError: CUDA error: out of memory",
            Cause.UNIFIED_MEMORY,
            "unified memory",
        ),
        ("ze: zeMemAllocDevice returned ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", Cause.DISGUISED, "Level Zero"),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 45.50 "
            "MiB is free. Of the allocated memory 77.90 GiB is allocated by PyTorch, and 310.00 MiB is reserved by "
            "PyTorch but unallocated.",
            Cause.TRULY_FULL,
            "The GPU was full",
        ),
    ],
)
def test_other_situations_have_their_own_words(text: str, cause: Cause, words: str) -> None:
    explained = explain_text(text)
    assert explained.cause is cause
    assert words in explained.sentence


def test_of_a_replicas_failure_the_message_with_figures_is_explained() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/w/train.py", line 10, in <module>\n    trainer.train()\n'
        "torch.OutOfMemoryError: Caught OutOfMemoryError in replica 0 on device 0.\n"
        "Original Traceback (most recent call last):\n"
        f'  File "/w/net.py", line 7, in forward\n    return self.up(x)\n{OOM}'
    )
    explained = explain_text(text)
    assert explained.cause is Cause.TRULY_FULL
    assert explained.failing_line == "w/net.py:7"


def test_an_integration_is_not_unified_memory() -> None:
    """The word "tegra" is a part of "integrations", a folder of transformers."""
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{SITE}/transformers/integrations/bitsandbytes.py", line 90, in forward\n    x = f(x)\n'
        "torch.AcceleratorError: CUDA error: out of memory"
    )
    assert "unified memory" not in explain_text(text).sentence


@pytest.mark.parametrize("statement", ["stream = torch.cuda.current_stream()", "torch.manual_seed(seed)"])
def test_a_call_in_the_middle_of_a_run_is_not_the_first_cuda_call(statement: str) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "/w/a.py", line 1, in forward\n    {statement}\n'
        "torch.AcceleratorError: CUDA error: out of memory"
    )
    assert explain_text(text).cause is Cause.DISGUISED


def test_training_a_model_of_diffusers_is_a_forward_pass_and_its_pipeline_is_an_evaluation() -> None:
    unet = (f"{SITE}/diffusers/models/unets/unet_2d_condition.py", "forward", "sample = block(sample)")
    training = failed_at(("/w/train.py", "<module>", "pred = unet(noisy, steps, text).sample"), unet)
    assert situation_of(training.found).phase is FailurePhase.FORWARD
    pipeline = (f"{SITE}/diffusers/pipelines/flux/pipeline_flux.py", "__call__", "noise = self.transformer(x)")
    inference = failed_at(("/w/app.py", "<module>", "image = pipe(prompt)"), pipeline, unet)
    assert situation_of(inference.found).phase is FailurePhase.EVALUATION
