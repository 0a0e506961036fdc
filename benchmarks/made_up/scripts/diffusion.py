"""Stable Diffusion's U-Net is trained, part by part loaded from its repository as diffusers' examples do."""

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

name = "stable-diffusion-v1-5/stable-diffusion-v1-5"
scheduler = DDPMScheduler.from_pretrained(name, subfolder="scheduler")
tokenizer = CLIPTokenizer.from_pretrained(name, subfolder="tokenizer")
encoder = CLIPTextModel.from_pretrained(name, subfolder="text_encoder").cuda().requires_grad_(requires_grad=False)
autoencoder = AutoencoderKL.from_pretrained(name, subfolder="vae").cuda().requires_grad_(requires_grad=False)
unet = UNet2DConditionModel.from_pretrained(name, subfolder="unet").cuda()
optimizer = torch.optim.AdamW(unet.parameters())
for _ in range(3):
    words = tokenizer(["the the"], padding="max_length", max_length=77, truncation=True, return_tensors="pt")
    latents = autoencoder.encode(torch.zeros(1, 3, 512, 512, device="cuda")).latent_dist.sample()
    noise, when = torch.randn_like(latents), torch.zeros(1, dtype=torch.long, device="cuda")
    found = unet(scheduler.add_noise(latents, noise, when), when, encoder(words.input_ids.cuda())[0]).sample
    (found - noise).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
