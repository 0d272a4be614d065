"""Damaged artifacts, as lists of edits to a sound one.

The edits are kept, not the file: its library is code for one CPU and one version of TVM. Checksums
are repaired after the content changes, so that damage reaches what is behind them. The library
itself stays as it is: an artifact is code, and whoever changes code and checksum runs what he
likes.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import warnings
import zipfile
from typing import Any

from tests.fuzz.mutations import mutate_bytes
from tests.fuzz.programs import random_pack

__all__ = ["Edit", "apply", "random_edits"]

Edit = list[Any]
"""Name of the edit and its arguments, as JSON has them."""

_MEMBERS = ("manifest.json", "library.so", "smaller.so", "weights.bin", "programs.bin")
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 64, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64,
    10**40, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "0", "x", "\ud800", "a\0b", "ü" * 50,
    "float32", "float64", "int8", "bool", "object", "O", "S4", "datetime64[s]", "bfloat16",
    "float8_e4m3fn", "llvm", "cuda", "opencl", "hexagon", "ext_dev", "vpi", "../x", [], [0], [-1],
    [1, 3, 16, 16], ["N"], [[]], [None], [2**62, 2**62], [1] * 70, {}, {"a": 1}, [{}], {"": {}},
)  # fmt: skip
_LOCAL = {  # fields of a member's own header: offset and format
    "signature": (0, "<I"), "version": (4, "<H"), "flags": (6, "<H"), "method": (8, "<H"),
    "crc": (14, "<I"), "compressed": (18, "<I"), "size": (22, "<I"), "name": (26, "<H"),
    "extra": (28, "<H"),
}  # fmt: skip
_CENTRAL = {  # … and of its entry in the archive's directory
    "signature": (0, "<I"), "version": (6, "<H"), "flags": (8, "<H"), "method": (10, "<H"),
    "crc": (16, "<I"), "compressed": (20, "<I"), "size": (24, "<I"), "name": (28, "<H"),
    "extra": (30, "<H"), "comment": (32, "<H"), "disk": (34, "<H"), "attributes": (38, "<I"),
    "offset": (42, "<I"),
}  # fmt: skip
_END = {
    "signature": (0, "<I"), "disk": (4, "<H"), "entries": (8, "<H"), "total": (10, "<H"),
    "size": (12, "<I"), "offset": (16, "<I"), "comment": (20, "<H"),
}  # fmt: skip
_NUMBERS = (0, 1, 2, 7, 8, 12, 14, 99, 255, 0x7FFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def random_edits(seed: int, manifest: dict[str, Any]) -> list[Edit]:
    """One to three edits, most of them of the manifest."""
    rng = random.Random(seed)
    return [_edit(rng, manifest) for _ in range(rng.choice((1, 1, 1, 2, 3)))]


def _edit(rng: random.Random, manifest: dict[str, Any]) -> Edit:
    paths = list(_paths(manifest))
    match rng.randrange(20):
        case 0 | 1 | 2 | 3 | 4 | 5 | 6:
            return ["set", rng.choice(paths), rng.choice(_VALUES)]
        case 7:
            path = rng.choice(paths)
            return ["set", path, _near(rng, _at(manifest, path))]
        case 8:
            return ["delete", rng.choice(paths)]
        case 9:
            parent = rng.choice(paths)[:-1]
            name = rng.choice(("__class__", "self", "", "dtype", "\ud800", "peak"))
            return ["set", [*parent, name], rng.choice(_VALUES)]
        case 10:
            path = rng.choice([p for p in paths if isinstance(_at(manifest, p), list)])
            return ["repeat", path, rng.choice((0, 1, 2, 1000, 100_000))]
        case 11:
            depth = rng.choice((10, 900, 5000, 100_000))
            return ["nest", rng.choice(paths), rng.choice(("[]", "{}")), depth]
        case 12:
            return ["encode", rng.choice(("utf-16", "utf-8-sig", "latin-1", "utf-32"))]
        case 13:
            return ["text", rng.getrandbits(32)]
        case 14:
            return ["programs", rng.getrandbits(32)]
        case 15:
            return [
                "resize",
                rng.choice(("weights.bin", "programs.bin")),
                rng.choice((0, 1, 64, 1 << 20)),
            ]
        case 16:
            where, fields = rng.choice((("local", _LOCAL), ("central", _CENTRAL)))
            member = rng.choice(_MEMBERS[:3])
            return ["header", where, member, rng.choice(list(fields)), rng.choice(_NUMBERS)]
        case 17:
            return ["end", rng.choice(list(_END)), rng.choice(_NUMBERS)]
        case 18:
            what = rng.choice(("drop", "double", "deflate", "bzip2", "lzma", "link", "rename"))
            return [what, rng.choice(_MEMBERS[:3])]
        case _:
            return ["bytes", rng.getrandbits(32)]


def apply(sound: bytes, edits: list[Edit]) -> bytes:
    """A sound artifact after `edits`, the content's first, the file's last."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    for name, *arguments in edits:
        if name == "programs":
            members["programs.bin"] = random_pack(arguments[0])
        elif name == "resize":
            member, size = arguments
            members[member] = members.get(member, b"").ljust(size, b"\0")[:size]
    for name, content in members.items():
        manifest["checksums"][name] = hashlib.sha256(content).hexdigest()
    for name, *arguments in edits:
        if name in ("set", "delete", "repeat"):
            _edit_manifest(manifest, name, *arguments)
    text = _text(manifest, edits)
    members["manifest.json"] = text
    return _pack(members, edits)


def _edit_manifest(manifest: Any, name: str, path: list[Any], value: Any = None) -> None:
    try:
        parent = _at(manifest, path[:-1])
        if name == "set":
            parent[path[-1]] = value
        elif name == "delete":
            del parent[path[-1]]
        else:
            parent[path[-1]] = parent[path[-1]] * value
    except (KeyError, IndexError, TypeError):
        return  # an edit before it took the place away


def _text(manifest: dict[str, Any], edits: list[Edit]) -> bytes:
    encoding, marker, nested = "utf-8", "the deep place", ""
    for name, *arguments in edits:
        if name == "encode":
            encoding = arguments[0]
        elif name == "nest":
            path, brackets, depth = arguments
            _edit_manifest(manifest, "set", path, marker)
            opened = "[" if brackets == "[]" else '{"a":'
            nested = opened * depth + "1" + brackets[1] * depth
    text = json.dumps(manifest).replace(f'"{marker}"', nested)
    content = text.encode(encoding, "replace")
    for name, *arguments in edits:
        if name == "text":
            content = mutate_bytes(content, arguments[0])
    return content


def _pack(members: dict[str, bytes], edits: list[Edit]) -> bytes:
    methods = {
        "deflate": zipfile.ZIP_DEFLATED,
        "bzip2": zipfile.ZIP_BZIP2,
        "lzma": zipfile.ZIP_LZMA,
    }
    by_member: dict[str, list[str]] = {}
    for name, *arguments in edits:
        if arguments and arguments[0] in _MEMBERS:
            by_member.setdefault(arguments[0], []).append(name)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            todo = by_member.get(name, [])
            if "drop" in todo:
                continue
            info = zipfile.ZipInfo("../" + name if "rename" in todo else name)
            info.compress_type = next((methods[t] for t in todo if t in methods), 0)
            if "link" in todo:
                info.external_attr = 0o120777 << 16
                content = b"/etc/hostname"
            archive.writestr(info, content)
            if "double" in todo:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a name that is there already
                    archive.writestr(info, content[: len(content) // 2])
    data = bytearray(out.getvalue())
    _headers(data, edits)
    for name, *arguments in edits:
        if name == "bytes":
            data = bytearray(mutate_bytes(bytes(data), arguments[0]))
    return bytes(data)


def _headers(data: bytearray, edits: list[Edit]) -> None:
    end = data.rindex(b"PK\5\6")
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        infos, at = list(archive.infolist()), archive.start_dir
    places = {}
    for info in infos:
        places[info.filename] = (info.header_offset, at)
        at += 46 + len(info.filename.encode()) + len(info.extra) + len(info.comment)
    for name, *arguments in edits:
        if name == "header":
            where, member, field, value = arguments
            if member in places:
                fields, base = (
                    (_LOCAL, places[member][0])
                    if where == "local"
                    else (_CENTRAL, places[member][1])
                )
                _write(data, base, *fields[field], value)
        elif name == "end":
            field, value = arguments
            _write(data, end, *_END[field], value)


def _write(data: bytearray, base: int, offset: int, form: str, value: int) -> None:
    struct.pack_into(form, data, base + offset, value % 2 ** (8 * struct.calcsize(form)))


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> Any:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield [*prefix, key]
        yield from _paths(inner, (*prefix, key))


def _at(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _near(rng: random.Random, value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 4, 64))
    if isinstance(value, str):
        return rng.choice((value[:-1], value + "x", value.upper(), value * 2))
    if isinstance(value, list):
        return rng.choice((value[:-1], value[::-1], [*value, *value[:1]]))
    return rng.choice(_VALUES)
