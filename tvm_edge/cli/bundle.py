"""``tvm-edge bundle`` and ``cmake-dir``: models in programs without Python."""

from __future__ import annotations

from pathlib import Path

import click

from tvm_edge.errors import InputError

__all__ = ["bundle_command", "cmake_dir_command"]


@click.command("bundle")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write."
)
@click.option(
    "--site-packages",
    type=click.Path(path_type=Path),
    help="Another machine's: pip install --platform ... --target FOLDER tvm-edge.",
)
def bundle_command(artifact: Path, output: Path, site_packages: Path | None) -> None:
    """Write a folder that runs an artifact on a machine without Python.

    It has the artifact, the libraries, the headers of the C and C++ interface, pkg-config's file,
    and a program: ./run --inputs FOLDER --outputs FOLDER --repeat 100.
    """
    from tvm_edge.runtime.bundle import write_bundle

    if str(artifact).startswith("zoo:") or artifact.suffix == ".onnx":
        raise InputError(
            f"{str(artifact)!r} is a model, not an artifact; compile it first: tvm-edge compile "
            f"{artifact} -o FILE.tvme",
            name="artifact",
        )
    written = write_bundle(artifact, output, site_packages)
    click.echo(f"wrote {written} ({written / 'run'} runs it)")


@click.command("cmake-dir")
def cmake_dir_command() -> None:
    """Print the folder for -Dtvm_edge_DIR=..., where find_package(tvm_edge) looks."""
    click.echo(str(Path(__file__).parents[1] / "native" / "cmake"))
