"""Small modules in PyTorch, one construct each, that :mod:`benchmarks.models.export_cases` exports.

Only the environment that exports imports this file: PyTorch is no dependency of the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["MODULES"]


class Function(nn.Module):
    """A convolution, a function of it, and another convolution."""

    def __init__(self, function: Callable[[Tensor], Tensor], channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.function = function
        self.last = nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class PadToMultiple(nn.Module):
    """Pads to a multiple of 32 that is calculated from the shape, and crops after."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.convolution = nn.Conv2d(3, 8, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2], x.shape[-1]
        below, right = (-height) % 32, (-width) % 32
        pads = (right // 2, right - right // 2, below // 2, below - below // 2)
        padded = F.pad(x, pads, self.mode)
        return self.convolution(padded)[..., : height // 2, : width // 2]


class SamePadding(nn.Module):
    """TensorFlow's padding of a strided convolution, calculated from the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [max((-(-s // 2) - 1) * 2 + 3 - s, 0) for s in x.shape[-2:]]
        (below, right) = sizes
        pads = [right // 2, right - right // 2, below // 2, below - below // 2]
        return self.convolution(F.pad(x, pads))


class ConvGRU(nn.Module):
    """A cell over the frames of a clip."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(3 + 8, 16, 3, padding=1)
        self.candidate = nn.Conv2d(3 + 8, 8, 3, padding=1)

    def forward(self, clip: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states = []
        for frame in clip.unbind(1):
            reset, update = self.gates(torch.cat([frame, state], 1)).sigmoid().chunk(2, 1)
            new = self.candidate(torch.cat([frame, reset * state], 1)).tanh()
            state = (1 - update) * state + update * new
            states.append(state)
        return torch.stack(states, 1), state


class Crnn(nn.Module):
    """Recogniser of a line of text: convolutions, a recurrent layer both ways, a CTC head."""

    def __init__(self, recurrent: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d((8, 2)),
        )  # fmt: skip
        self.recurrent = recurrent(64, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 40)

    def forward(self, line: Tensor) -> Tensor:
        found = self.features(line)
        sequence = found.permute(0, 3, 1, 2).flatten(2)
        return self.head(self.recurrent(sequence)[0]).log_softmax(-1)


class StreamingLstm(nn.Module):
    """A step of a recurrent network whose state comes in and goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(40, 32, num_layers=2)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found, (h, c) = self.recurrent(x, (h, c))
        return self.head(found).sigmoid(), h, c


class SuperResolution(nn.Module):
    """ESPCN: a pixel shuffle after three convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 16, 3, padding=1), nn.Tanh(),
            nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class DiffusionBlock(nn.Module):
    """A residual block with a time embedding, then attention over positions."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.time = nn.Linear(16, channels)
        self.second = nn.Sequential(
            nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        angles = step[:, None].float() * torch.exp(-torch.arange(8, device=x.device) * 0.5)
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = x + self.second(self.first(x) + embedding[:, :, None, None])
        batch, channels, height, width = x.shape
        parts = self.qkv(self.norm(x)).reshape(batch, 3, 4, channels // 4, height * width)
        q, k, v = (part.transpose(-1, -2) for part in parts.unbind(1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(attended.reshape(batch, channels, height, width))


class UNet(nn.Module):
    """Two scales; the decoder resizes to the size of the encoder's map."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.align = None if mode == "nearest" else False
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up = nn.Conv2d(24, 8, 3, padding=1)
        self.out = nn.Conv2d(11, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x).relu()
        deep = self.deep(first).relu()
        sized = {"mode": self.mode, "align_corners": self.align}
        first = self.up(torch.cat([F.interpolate(deep, first.shape[2:], **sized), first], 1))
        return self.out(torch.cat([F.interpolate(first, x.shape[2:], **sized), x], 1))


class Sampler(nn.Module):
    """A spatial transformer: the affine grid is learned from the image."""

    def __init__(self, padding: str) -> None:
        super().__init__()
        self.padding = padding
        self.features = nn.Conv2d(3, 8, 3, padding=1)
        self.where = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.where(self.features(x).mean((2, 3))).reshape(-1, 2, 3)
        identity = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        grid = F.affine_grid(identity + 0.3 * theta, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode=self.padding, align_corners=False)


class Warp(nn.Module):
    """Warps an image by a flow, as optical flow networks do."""

    def forward(self, x: Tensor, flow: Tensor) -> Tensor:
        height, width = x.shape[2:]
        ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack([xs, ys], -1)[None] + 2 * flow.permute(0, 2, 3, 1)
        scale = torch.tensor([width - 1, height - 1])
        return F.grid_sample(x, 2 * grid / scale - 1, align_corners=True)


class RoiHead(nn.Module):
    """Boxes come in; each is pooled and classified."""

    def __init__(self, aligned: bool) -> None:
        super().__init__()
        self.aligned = aligned
        self.features = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8 * 25, 5)

    def forward(self, x: Tensor, boxes: Tensor) -> Tensor:
        rois = torch.cat([torch.zeros_like(boxes[:, :1]), boxes[:, :2], boxes[:, 2:] + 20], 1)
        found = torchvision.ops.roi_align(
            self.features(x), rois, 5, 0.5, sampling_ratio=2, aligned=self.aligned
        )
        return self.head(found.flatten(1))


class Suppression(nn.Module):
    """Boxes and scores from an image, and NMS over them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 8, stride=8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.features(x).flatten(2)[0].T
        corners = 40 * found[:, :2]
        boxes = torch.cat([corners, corners + 15 + found[:, 2:4].abs()], 1)
        scores = found[:, 4].sigmoid()
        keep = torchvision.ops.nms(boxes, scores, 0.5)
        return boxes[keep], scores[keep]


class Einsum(nn.Module):
    """Attention with relative positions, by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.relative = nn.Parameter(torch.randn(16, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 4, 8).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        scores = scores + torch.einsum("bihd,ijd->bhij", q, self.relative)
        return torch.einsum("bhij,bjhd->bihd", (scores / 8**0.5).softmax(-1), v).flatten(2)


class Separable1d(nn.Module):
    """A temporal convolutional network over audio features."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for dilation in (1, 2, 4, 8):
            layers += [
                nn.ConstantPad1d((2 * dilation, 0), 0.0),
                nn.Conv1d(40, 40, 3, dilation=dilation, groups=40),
                nn.Conv1d(40, 40, 1), nn.BatchNorm1d(40), nn.PReLU(40),
            ]  # fmt: skip
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + x


class Spectrogram(nn.Module):
    """Frames by a convolution with a Fourier basis, mel bands, logarithm."""

    def __init__(self) -> None:
        super().__init__()
        time, bins = torch.arange(400), torch.arange(201)
        angle = 2 * torch.pi * time[None] * bins[:, None] / 400
        basis = torch.cat([angle.cos(), angle.sin()]) * torch.hann_window(400)
        self.register_buffer("basis", basis[:, None])
        self.register_buffer("mel", torch.rand(40, 201))

    def forward(self, wave: Tensor) -> Tensor:
        padded = F.pad(wave[:, None], (200, 200), "reflect")
        real, imaginary = F.conv1d(padded, self.basis, stride=160).chunk(2, 1)
        return torch.log(self.mel @ (real**2 + imaginary**2) + 1e-6)


class TopKeypoints(nn.Module):
    """The largest peaks of a heat map, their positions by division and remainder."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Conv2d(3, 1, 5, padding=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        heat = self.heat(x).sigmoid()
        peaks = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        scores, places = peaks.flatten(1).topk(20)
        width = heat.shape[-1]
        return scores, torch.stack([places % width, places // width], -1).float()


class AdaIn(nn.Module):
    """Style transfer by statistics of another image's features."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 16, 3), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(16, 3, 3)
        )

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        x, y = self.encoder(content), self.encoder(style)
        mean, std = y.mean((2, 3), keepdim=True), y.std((2, 3), keepdim=True)
        return self.decoder(F.instance_norm(x) * std + mean)


class Encoder(nn.Module):
    """Two layers of nn.TransformerEncoder with a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.embedding(tokens), src_key_padding_mask=tokens == 0)


class FocusBackbone(nn.Module):
    """Slices with steps, splits, a transposed convolution: YOLOv5's first layer and a neck."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(12, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1, output_padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]
        left, right = self.first(torch.cat(parts, 1)).split(8, 1)
        return self.up(F.mish(left) * F.hardsigmoid(right))


class Scatter(nn.Module):
    """Assignments to slices and by index, a cumulative sum, a one-hot code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        y = self.linear(x).cumsum(-1)
        filled = torch.zeros_like(y)
        filled[:, 2:6] = y[:, :4]
        filled = filled.scatter(1, index, y)
        return torch.where(filled > 0, filled, y) + F.one_hot(index[:, :1].squeeze(1), 16)


class Loop(nn.Module):
    """A loop whose number of turns is an input: scripted, so it stays a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, turns: int) -> Tensor:
        for _ in range(turns):
            x = torch.tanh(self.linear(x))
        return x


class FakeQuantized(nn.Module):
    """Weights and activations rounded to int8, as quantisation-aware training exports them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127)
            weight = torch.fake_quantize_per_tensor_affine(layer.weight, 0.005, 0, -128, 127)
            x = F.conv2d(x, weight, layer.bias).relu()
        return x


def _windows(x: Tensor) -> Tensor:
    columns = F.unfold(x, 3, padding=1, stride=2)
    return columns.reshape(x.shape[0], 72, x.shape[2] // 2, x.shape[3] // 2)


def _shuffled(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    parts = F.group_norm(x, 4).reshape(batch, 2, channels // 2, height, width)
    return parts.transpose(1, 2).flatten(1, 2) * x.amax((2, 3), keepdim=True)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "pad_reflect": lambda: Function(lambda x: F.pad(x, (3, 2, 1, 4), "reflect")),
    "pad_replicate": lambda: Function(lambda x: F.pad(x, (3, 2, 1, 4), "replicate")),
    "pad_constant": lambda: Function(lambda x: F.pad(x, (3, 2, 1, 4), value=0.5)),
    "pad_circular": lambda: Function(lambda x: F.pad(x, (3, 2, 1, 4), "circular")),
    "pad_crop": lambda: Function(lambda x: F.pad(x, (-3, 2, 1, -4))),
    "pad_computed_constant": lambda: PadToMultiple("constant"),
    "pad_computed_reflect": lambda: PadToMultiple("reflect"),
    "pad_computed_replicate": lambda: PadToMultiple("replicate"),
    "pad_same": SamePadding,
    "conv_gru": ConvGRU,
    "crnn_lstm": lambda: Crnn(nn.LSTM),
    "crnn_gru": lambda: Crnn(nn.GRU),
    "streaming_lstm": StreamingLstm,
    "super_resolution": SuperResolution,
    "diffusion_block": DiffusionBlock,
    "unet_bilinear": lambda: UNet("bilinear"),
    "unet_nearest": lambda: UNet("nearest"),
    "unet_bicubic": lambda: UNet("bicubic"),
    "resize_align_corners": lambda: Function(
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True)
    ),
    "grid_sample_zeros": lambda: Sampler("zeros"),
    "grid_sample_border": lambda: Sampler("border"),
    "grid_sample_reflection": lambda: Sampler("reflection"),
    "warp_by_flow": Warp,
    "roi_align": lambda: RoiHead(False),
    "roi_align_aligned": lambda: RoiHead(True),
    "nms": Suppression,
    "einsum_attention": Einsum,
    "temporal_conv": Separable1d,
    "spectrogram": Spectrogram,
    "top_keypoints": TopKeypoints,
    "adain": AdaIn,
    "transformer_encoder": Encoder,
    "focus": FocusBackbone,
    "scatter": Scatter,
    "loop": lambda: torch.jit.script(Loop()),
    "fake_quantized": FakeQuantized,
    "unfold": lambda: Function(_windows, 72),
    "adaptive_pool": lambda: Function(lambda x: F.adaptive_avg_pool2d(x, (5, 7))),
    "group_norm_shuffle": lambda: Function(_shuffled),
    "normalised": lambda: Function(lambda x: F.normalize(x, dim=1) + x.argmax(1, keepdim=True)),
}
