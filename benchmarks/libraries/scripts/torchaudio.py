"""torchaudio: a filter by its own CUDA operator, and a spectrogram, with their gradients."""

import torch
import torchaudio
from counted import Counted

SOUNDS, SAMPLES = 8, 160_000


def run(counted: Counted) -> None:
    sound = torch.randn(SOUNDS, SAMPLES, device="cuda", requires_grad=True)
    poles = torch.tensor([1.0, 0.1, 0.01]).cuda()
    zeros = torch.tensor([0.5, 0.2, 0.1]).cuda()
    filtered = torchaudio.functional.lfilter(sound, poles, zeros)
    spectrum = torchaudio.transforms.MelSpectrogram(16_000, n_fft=400, hop_length=160, n_mels=80).cuda()(filtered)
    assert spectrum.shape == (SOUNDS, 80, 1 + SAMPLES // 160)
    spectrum.mean().backward()
    assert sound.grad is not None
    counted.look()
