"""Find objects in pictures: compile, run, draw, and say where everything ran and how fast.

``make demo`` runs this. The detector is a small SSD that was trained on generated pictures of
shapes (examples/train); those shown here it has never seen. It is compiled for this machine's CPU
and, where there is one, for its OpenCL device. Pictures and reports land in the folder ``demo``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import tvm_edge
from tvm_edge.zoo import shapes

NETWORK = "shapes_ssd"
SHOWN = 0.5  # the score from which a detection is drawn; the network gives more, from 0.05 on
PICTURES, COLUMNS = 8, 4
ZOOM = 3
COLOURS = ("#ff5a5f", "#ffd166", "#06d6a0", "#4cc9f0", "#f78c6b", "#c792ea")

Outputs = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder to write into")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    scenes = [shapes.draw(index) for index in range(PICTURES)]
    inputs = [{"image": shapes.network_input(scene)} for scene in scenes]

    targets = ["llvm"]
    if any(device.target == "opencl" for device in tvm_edge.devices()):
        targets.append("opencl")
    else:
        print(
            "no OpenCL device here, so no GPU path: sudo apt-get install pocl-opencl-icd gives one "
            "that runs on any CPU (tvm-edge doctor says more)"
        )
    results = {target: detect(target, inputs, folder) for target in targets}

    found = results["llvm"]
    print_objects(found)
    sheet = folder / "detections.png"
    contact_sheet([drawn(*each) for each in zip(scenes, found, strict=True)]).save(sheet)
    print(f"pictures with boxes: {sheet}")
    if "opencl" in results:
        same = all(alike(*pair) for pair in zip(*results.values(), strict=True))
        print(f"llvm and opencl find {'the same' if same else 'DIFFERENT'} objects")
        if not same:
            raise SystemExit("two devices find different objects in the same pictures")


def detect(target: str, inputs: list[Outputs], folder: Path) -> list[Outputs]:
    """Compile for `target`, say how it went, and return what the model finds in each picture."""
    print(f"\n{NETWORK} for {target}")
    # Weighing costs, the default, would leave nothing to an OpenCL device that is this CPU again.
    model = tvm_edge.compile(f"zoo:{NETWORK}", target, fallback="list")
    found = [model.run(each) for each in inputs]
    report = model.report.to_html(folder / f"report-{target}.html")
    artifact = model.export(folder / f"{NETWORK}-{target}.tvme")
    again = tvm_edge.load(artifact)
    if not all(np.array_equal(again.run(inputs[0])[name], found[0][name]) for name in found[0]):
        raise SystemExit(f"{artifact} computes something else than the model it was exported from")
    size = artifact.stat().st_size / 2**20
    for label, text in (
        ("placement", model.report.placement_line()),
        ("latency", model.benchmark(inputs[0])),
        ("report", report),
        ("artifact", f"{artifact} ({size:.1f} MiB; loaded again, outputs are equal)"),
    ):
        print(f"  {label:10} {text}")
    return found


def print_objects(found: list[Outputs]) -> None:
    """One line a picture: what is in it."""
    print("\nobjects found, and their scores")
    for index, outputs in enumerate(found):
        kept = np.flatnonzero(outputs["scores"] >= SHOWN)
        names = (
            f"{shapes.CLASSES[outputs['classes'][i]]} {outputs['scores'][i]:.2f}"
            for i in kept[np.argsort(-outputs["scores"][kept], kind="stable")]
        )
        print(f"  picture {index}: {', '.join(names) or 'nothing'}")


def drawn(scene: shapes.Scene, outputs: Outputs) -> Image.Image:
    """The picture, larger, with a box and a label for each detection."""
    side = shapes.SIZE * ZOOM
    picture = Image.fromarray(scene.pixels).resize((side, side), Image.Resampling.BICUBIC)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=13)
    for box, score, kind in zip(*(outputs[n] for n in ("boxes", "scores", "classes")), strict=True):
        if score < SHOWN:
            continue
        y1, x1, y2, x2 = (box * side).tolist()
        pen.rectangle((x1, y1, x2, y2), outline=COLOURS[kind], width=2)
        label = f"{shapes.CLASSES[kind]} {score:.2f}"
        place = pen.textbbox((max(x1, 0) + 2, max(y1 - 17, 0)), label, font=font)
        pen.rectangle((place[0] - 2, place[1] - 2, place[2] + 2, place[3] + 2), fill=COLOURS[kind])
        pen.text((max(x1, 0) + 2, max(y1 - 17, 0)), label, fill="black", font=font)
    return picture


def contact_sheet(pictures: list[Image.Image]) -> Image.Image:
    """All pictures in rows."""
    width, height = pictures[0].size
    sheet = Image.new("RGB", (width * COLUMNS, height * -(-len(pictures) // COLUMNS)))
    for index, picture in enumerate(pictures):
        sheet.paste(picture, (index % COLUMNS * width, index // COLUMNS * height))
    return sheet


def alike(a: Outputs, b: Outputs) -> bool:
    """Whether the objects drawn are the same, up to rounding."""
    kept = [outputs["scores"] >= SHOWN for outputs in (a, b)]
    ours, theirs = ({n: v[k] for n, v in x.items()} for x, k in zip((a, b), kept, strict=True))
    return np.array_equal(ours["classes"], theirs["classes"]) and all(
        np.allclose(ours[name], theirs[name], atol=1e-3) for name in ("boxes", "scores")
    )


if __name__ == "__main__":
    main()
