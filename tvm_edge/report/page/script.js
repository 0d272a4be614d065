"use strict";

// What only works with scripts is hidden without.
for (const each of document.querySelectorAll(".js")) each.hidden = false;

// Tables: sorted by the buttons in their headings, filtered by a text.

const numberOf = (text) => parseFloat(text.replaceAll(",", ""));

function sortTable(table, column, descending) {
  const body = table.tBodies[0];
  const numeric = table.tHead.rows[0].cells[column].classList.contains("number");
  const keyed = Array.from(body.rows, (row) => {
    const text = row.cells[column].textContent;
    return { row, key: numeric ? numberOf(text) : text };
  });
  const sign = descending ? -1 : 1;
  keyed.sort((a, b) => {
    if (!numeric) return sign * a.key.localeCompare(b.key, undefined, { numeric: true });
    // What is not known comes last either way.
    if (isNaN(a.key) || isNaN(b.key)) return isNaN(a.key) - isNaN(b.key);
    return sign * (a.key - b.key);
  });
  body.append(...keyed.map((each) => each.row));
}

for (const table of document.querySelectorAll("table[data-sortable]")) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const now = heading.getAttribute("aria-sort");
      // Numbers are asked for largest first; "#" is the order of the run.
      const first = heading.classList.contains("number") && button.textContent !== "#";
      const descending = now ? now === "ascending" : first;
      for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortTable(table, column, descending);
    });
  });
}

for (const input of document.querySelectorAll("input[data-table]")) {
  const rows = Array.from(document.getElementById(input.dataset.table).tBodies[0].rows);
  const texts = rows.map((row) => Array.from(row.cells, (c) => c.textContent).join("\n").toLowerCase());
  const output = input.parentElement.querySelector("output");
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !wanted.every((word) => texts[i].includes(word));
      shown += !row.hidden;
    });
    output.textContent = wanted.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  });
}

// The graph: one stop of the Tab key; arrows follow its edges.

const nodes = Array.from(document.querySelectorAll(".node"));
const detail = document.getElementById("graph-detail");

function choose(node, focus) {
  for (const each of nodes) {
    each.setAttribute("tabindex", each === node ? "0" : "-1");
    each.setAttribute("aria-pressed", each === node);
  }
  detail.textContent = node.querySelector("title").textContent;
  if (focus) node.focus();
}

function beside(node, step) {
  const place = (each) => each.transform.baseVal.consolidate().matrix;
  const row = nodes.filter((each) => place(each).f === place(node).f);
  row.sort((a, b) => place(a).e - place(b).e);
  return row[row.indexOf(node) + step];
}

function along(node, ids) {
  return ids ? document.getElementById(`operator-${ids.split(" ")[0]}`) : null;
}

const moves = {
  ArrowUp: (node) => along(node, node.dataset.up),
  ArrowDown: (node) => along(node, node.dataset.down),
  ArrowLeft: (node) => beside(node, -1),
  ArrowRight: (node) => beside(node, 1),
  Home: () => nodes[0],
  End: () => nodes[nodes.length - 1],
};

if (nodes.length) {
  nodes[0].setAttribute("tabindex", "0");
  const pane = nodes[0].closest(".scroll");
  const first = nodes[0].getBoundingClientRect();
  pane.scrollLeft += first.left + first.width / 2 - pane.getBoundingClientRect().left - pane.clientWidth / 2;
}
for (const node of nodes) {
  node.setAttribute("aria-pressed", "false");
  node.addEventListener("click", () => choose(node, true));
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") choose(node, false);
    else if (moves[event.key]) {
      const next = moves[event.key](node);
      if (next) choose(next, true);
    } else return;
    event.preventDefault();
  });
}

// A bar of the timeline leads to its row; who has no mouse finds all of it in the table.

for (const bar of document.querySelectorAll(".launch")) {
  bar.addEventListener("click", () => {
    const row = document.getElementById(bar.dataset.row);
    for (const each of document.querySelectorAll("tr.chosen")) each.classList.remove("chosen");
    row.classList.add("chosen");
    row.hidden = false;
    row.scrollIntoView({ block: "center" });
  });
}
