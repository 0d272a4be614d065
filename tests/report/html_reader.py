"""What tests read of an HTML page without a browser."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = frozenset(("meta", "input", "img", "link", "br", "wbr"))


class Page(HTMLParser):
    """Tags with attributes, ids, headings, the cells of each row, and whether all is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.rows: list[list[str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self.open: list[str] = []
        self._table: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if "id" in values:
            self.ids.append(str(values["id"]))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables[str(values.get("id"))] = self._table = []
        elif tag == "tr":
            self.rows.append([])
            self._table.append(self.rows[-1])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("h1", "h2", "h3", "h4"):
            self.headings.append((int(tag[1]), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & set(self.open):
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if self.headings and {"h1", "h2", "h3"} & set(self.open):
            level, text = self.headings[-1]
            self.headings[-1] = level, text + data
