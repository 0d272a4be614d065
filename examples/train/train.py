"""Train ``shapes_ssd`` and write it as ONNX: reproduces the file that tvm-edge ships.

    pip install -e '.[test]' torch        # PyTorch for CPUs is enough
    python examples/train/train.py        # 10 minutes on two cores of its own

Liu et al., SSD, ECCV 2016: anchors are matched to objects by overlap (section 2.2), the classes'
loss is a softmax's over them and the three hardest backgrounds for each, the boxes' a smooth L1.
Everything is seeded. On another machine, or with another PyTorch, sums round differently: the
weights then differ, the mAP by about a point.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
from export import export, measure
from matching import targets
from model import Detector, anchors
from symmetry import turned, turned_picture
from torch import Tensor
from torch.nn import functional

from tvm_edge.zoo import shapes

VERSION = "1"  # of this recipe: changes with anything that changes the weights
THREADS = 2
SHIPPED = Path(__file__).parents[2] / "tvm_edge" / "zoo" / "trained" / "shapes_ssd.onnx"


def dataset(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures uint8 ``[N, 3, 128, 128]``, and labels and encodings of their anchors."""
    with multiprocessing.Pool(THREADS) as pool:
        scenes = pool.map(functools.partial(shapes.draw, split="train"), range(count), 50)
    pixels = np.stack([scene.pixels for scene in scenes]).transpose(0, 3, 1, 2)
    matched = [targets(anchors(), scene.boxes, scene.classes) for scene in scenes]
    labels, encodings = (np.stack(part) for part in zip(*matched, strict=True))
    return torch.from_numpy(pixels.copy()), torch.from_numpy(labels), torch.from_numpy(encodings)


def loss(logits: Tensor, found: Tensor, labels: Tensor, encodings: Tensor) -> Tensor:
    """SSD's, equation 1. Labels: 0 the background, -1 anchors that count for nothing."""
    each = functional.cross_entropy(
        logits.transpose(1, 2), labels.clamp(min=0), reduction="none"
    ) * (labels >= 0)
    positive = labels > 0
    background = each.detach().masked_fill(labels != 0, -1.0)
    rank = background.argsort(1, descending=True).argsort(1)
    hard = (labels == 0) & (rank < 3 * positive.sum(1, keepdim=True))
    count = positive.sum()
    boxes = functional.smooth_l1_loss(found[positive], encodings[positive], reduction="sum")
    return ((each * (positive | hard)).sum() + boxes) / count


def vary(
    pictures: Tensor, labels: Tensor, encodings: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch as float, turned and mirrored, its colours swapped: shapes are what counts."""
    x = pictures[:, torch.randperm(3, generator=generator)].float() / 255
    invert, *how = (torch.rand(4, generator=generator) < 0.5).tolist()
    labels, encodings = turned(labels, encodings, *how)
    return turned_picture(1 - x if invert else x, *how), labels, encodings


def train(seed: int, pictures: int, epochs: int, batch: int, rate: float) -> Detector:
    """Return a trained network, in evaluation mode."""
    torch.manual_seed(seed)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    pixels, labels, encodings = dataset(pictures)
    print(f"drew {pictures} pictures in {time.perf_counter() - start:.0f} s", flush=True)
    network = Detector().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=1e-3)
    steps = epochs * (pictures // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.15)
    for epoch in range(epochs):
        network.train()
        total = 0.0
        for chosen in torch.randperm(pictures, generator=generator).split(batch):
            if len(chosen) < batch:
                continue
            x, *wanted = vary(pixels[chosen], labels[chosen], encodings[chosen], generator)
            value = loss(*network(x.contiguous(memory_format=torch.channels_last)), *wanted)
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            total += value.item() * len(chosen) / pictures
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}/{epochs}: loss {total:.3f}, {seconds:.0f} s", flush=True)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=SHIPPED, help="the ONNX file to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    options = parser.parse_args()
    network = train(options.seed, options.pictures, options.epochs, options.batch, options.rate)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figures = {"seed": str(options.seed), "recipe": VERSION}
    export(network, options.output, figures)
    accuracy = measure(options.output)
    export(network, options.output, {**figures, "mAP@0.5": f"{accuracy:.4f}"})
    print(f"{options.output}: {options.output.stat().st_size / 1e6:.2f} MB, mAP@0.5 {accuracy:.4f}")


if __name__ == "__main__":
    main()
