"""Pick channels out of blocked images, by shuffles of vectors or element by element.

Concatenations whose parts do not fill blocks, splits inside a block and channel shuffles all are
this one kernel. Which element goes where is known when it is compiled, so that each pixel is a
straight line of loads, shuffles and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir, tirx

__all__ = ["gather_channels"]


def gather_channels(
    sources: Sequence[tuple[int | tirx.Expr, ...]],
    picks: Sequence[tuple[int, int]],
    dtype: str = "float32",
    *,
    shuffles: bool = True,
) -> tirx.PrimFunc:
    """Copy chosen channels of blocked images into a blocked image.

    Parameters
    ----------
    sources : sequence of tuple of int or tirx.Expr
        Shapes ``[N, C/b, H, W, b]`` of the images; all but the number of blocks are equal, and
        batch, lines and columns may be open.
    picks : sequence of (int, int)
        For each channel of the result the image it is from and its number there. The result is
        filled up to whole blocks with the last one.
    dtype : str
        Of all of them.
    shuffles : bool
        Whether the target has shuffles of vectors. TVM writes wrong ones for OpenCL.

    Returns
    -------
    tirx.PrimFunc
        ``(*images, result)``, scheduled: lines are shared out to the cores.
    """
    lengths = zip(("batch", "lines", "columns"), (sources[0][i] for i in (0, 2, 3)), strict=True)
    batch, lines, columns = (
        length if isinstance(length, int) else tirx.Var(name, "int64") for name, length in lengths
    )
    block = int(sources[0][4])
    blocks = -(-len(picks) // block)
    images = [
        tirx.decl_buffer((batch, shape[1], lines, columns, block), dtype, name=f"image{i}")
        for i, shape in enumerate(sources)
    ]
    result = tirx.decl_buffer((batch, blocks, lines, columns, block), dtype, name="gathered")
    index = "int32" if all(isinstance(d, int) for d in (batch, lines, columns)) else "int64"
    task, column = tirx.Var("task", index), tirx.Var("x", index)
    n, y = tirx.floordiv(task, lines), tirx.floormod(task, lines)
    lanes = tirx.Ramp(tirx.const(0, index), tirx.const(1, index), block)

    def vector(image: int, number: int) -> tirx.Expr:
        return tirx.BufferLoad(images[image], [n, number, y, column, lanes])

    copies = []
    for target in range(blocks):
        own = [picks[min(target * block + lane, len(picks) - 1)] for lane in range(block)]
        taken = [(image, *divmod(channel, block)) for image, channel in own]
        if shuffles:
            value = _shuffled(taken, vector)
            copies.append(tirx.BufferStore(result, value, [n, target, y, column, lanes]))
            continue
        for lane, (image, number, place) in enumerate(taken):
            value = images[image][n, number, y, column, place]
            copies.append(tirx.BufferStore(result, value, [n, target, y, column, lane]))
    pixel = copies[0] if len(copies) == 1 else tirx.SeqStmt(copies)  # TVM refuses one
    inner = tirx.For(column, 0, columns, tirx.ForKind.SERIAL, pixel)
    outer = tirx.For(task, 0, batch * lines, tirx.ForKind.PARALLEL, inner)
    # TVM asks every kernel of a Relax module for a root block.
    root = s_tir.SBlock([], [], [], "root", outer)
    func = tirx.PrimFunc([*images, result], s_tir.SBlockRealize([], tirx.const(True, "bool"), root))
    return func.with_attrs(
        {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8, "s_tir": True}
    )


def _shuffled(
    taken: Sequence[tuple[int, int, int]], vector: Callable[[int, int], tirx.Expr]
) -> tirx.Expr:
    """Return a vector of elements, each given by image, block and lane: two sources a shuffle."""
    first, *others = dict.fromkeys((image, number) for image, number, _ in taken)
    if not others:
        own = [lane for *_, lane in taken]
        kept = own == list(range(len(own)))
        return vector(*first) if kept else _shuffle([vector(*first)], own)
    made, known = vector(*first), {first}
    for source in others:
        # A lane that none of both has is set by a later shuffle.
        places = [
            len(taken) + lane
            if (image, number) == source
            else (lane if len(known) == 1 else place) * ((image, number) in known)
            for place, (image, number, lane) in enumerate(taken)
        ]
        made, known = _shuffle([made, vector(*source)], places), {*known, source}
    return made


def _shuffle(vectors: Sequence[tirx.Expr], places: Sequence[int]) -> tirx.Expr:
    return tirx.Shuffle(list(vectors), [tirx.IntImm("int32", place) for place in places])
