"use strict";
// What the panels are made of. Text only ever becomes text: names come from clients and files.

const find = (id) => document.getElementById(id);
const UNKNOWN = "-";

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(digits)} G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(digits)} M`;
  if (size >= 1000) return String(Math.round(value));
  return String(Number(value.toPrecision(digits)));
}

const share = (value) => (value === null || value === undefined ? UNKNOWN : `${number(100 * value)} %`);
const ms = (value) => (value === null || value === undefined ? UNKNOWN : `${number(value)} ms`);
const bytes = (value) => (value === null || value === undefined ? UNKNOWN : `${number(value / 1e6)} MB`);
const perSecond = (value) => (value === null || value === undefined ? UNKNOWN : `${number(value)}/s`);
const clock = (seconds) => (seconds === null ? UNKNOWN : new Date(1000 * seconds).toTimeString().slice(0, 8));

// A table whose cells stay and whose texts change: what a reader has focused or selected is left where it is.
class Table {
  // columns: {title, text?: left aligned, cell(row, node): fills a cell}
  constructor(id, caption, columns) {
    this.table = find(id);
    this.columns = columns;
    this.rows = [];
    this.table.caption.textContent = caption;
    const head = this.table.tHead.insertRow();
    for (const column of columns) {
      const cell = make("th", column.title, column.text ? "text" : "");
      cell.scope = "col";
      head.append(cell);
    }
  }

  caption(text) {
    setText(this.table.caption, text);
  }

  show(rows) {
    this.table.hidden = rows.length === 0;
    const body = this.table.tBodies[0];
    while (this.rows.length > rows.length) {
      this.rows.pop();
      body.deleteRow(-1);
    }
    while (this.rows.length < rows.length) {
      const row = body.insertRow();
      const cells = this.columns.map((column, place) => {
        const cell = make(place === 0 ? "th" : "td", "", column.text ? `text ${column.text}` : "");
        if (place === 0) cell.scope = "row";
        row.append(cell);
        return cell;
      });
      this.rows.push(cells);
    }
    rows.forEach((row, at) => {
      this.columns.forEach((column, place) => column.cell(row, this.rows[at][place]));
    });
  }
}

// A cell of text.
const plain = (title, text, kind) => ({
  title, text: kind, cell: (row, node) => setText(node, text(row)),
});

// A cell of text that is marked, in words and by weight and colour, where something calls for a look.
const marked = (title, text, calls, kind) => ({
  title, text: kind, cell: (row, node) => {
    const isCalling = calls(row);
    setText(node, isCalling ? `!\u00a0${text(row)}` : text(row));
    node.classList.toggle("call", isCalling);
  },
});

// A share as a bar and in digits.
const measured = (title, value) => ({
  title, cell: (row, node) => {
    if (!node.firstChild) {
      const bar = make("meter");
      bar.max = 1;
      bar.setAttribute("aria-hidden", "true");
      node.append(bar, make("span", "", "digits"));
    }
    const found = value(row);
    node.firstChild.value = found === null ? 0 : Math.min(1, found);
    setText(node.lastChild, share(found));
  },
});

// Parts of a time as a bar; the digits stand in other cells.
const parted = (title, parts) => ({
  title, cell: (row, node) => {
    if (!node.firstChild) {
      const bar = make("span", undefined, "bar");
      bar.setAttribute("aria-hidden", "true");
      for (const name of ["queue", "copy", "compute"]) bar.append(make("i", undefined, name));
      node.append(bar);
    }
    const times = parts(row).map((time) => time || 0);
    const whole = times[0] + times[1] + times[2];
    times.forEach((time, at) => {
      const width = whole ? `${((100 * time) / whole).toFixed(1)}%` : "0";
      const part = node.firstChild.children[at];
      if (part.style.width !== width) part.style.width = width;
    });
  },
});

// Columns of a document (lists of one length) as rows.
function rowsOf(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, at) => Object.fromEntries(names.map((name) => [name, columns[name][at]])));
}

function facts(list, pairs) {
  while (list.children.length > pairs.length) list.lastChild.remove();
  pairs.forEach(([term, value], at) => {
    let entry = list.children[at];
    if (!entry) {
      entry = make("div");
      entry.append(make("dt"), make("dd"));
      list.append(entry);
    }
    setText(entry.firstChild, term);
    setText(entry.lastChild, value);
  });
}
