"use strict";
// Lines over the last minutes. Colours and dashes are taken from the page's style when its shade changes.

const POINTS_MAX = 300;
const SPAN_S_MIN = 60;  // of the time axis; a server that has just started has few seconds to show
const charts = [];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hour = (seconds) => new Date(1000 * seconds).toTimeString().slice(0, 8);
const DASHES = [[], [6, 3], [2, 3]];

// Values with none beside them, which no line would show.
function lone(plot, series) {
  const values = plot.data[series];
  const has = (at) => values[at] !== null && values[at] !== undefined;
  return [...values.keys()].filter((at) => has(at) && !has(at - 1) && !has(at + 1));
}

class Chart {
  // series: [{label, key}]; unit: appended to values; log: whether the scale is logarithmic
  constructor(id, series, unit, log) {
    this.node = find(id);
    this.text = find(`${id}-text`);
    this.series = series;
    this.unit = unit;
    this.log = log;
    this.plot = null;
    charts.push(this);
  }

  make(data) {
    const colours = [style("--s0"), style("--s1"), style("--s2")];
    const axis = {
      stroke: style("--muted"), grid: { stroke: style("--rule"), width: 1 }, ticks: { stroke: style("--rule"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const options = {
      width: Math.max(200, this.node.clientWidth), height: 190, legend: { show: false }, cursor: { show: false },
      padding: [null, 28, null, null],  // half a label of the time axis
      scales: { x: { time: true, range: (_, least, most) => [Math.min(least, most - SPAN_S_MIN), most] }, y: this.log ? { distr: 3 } : { range: (_, least, most) => [0, Math.max(1, 1.1 * most)] } },
      axes: [{ ...axis, space: 80, size: 28, values: (_, ticks) => ticks.map(hour) }, { ...axis, size: 54, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
      series: [{}, ...this.series.map((one, at) => ({
        label: one.label, stroke: colours[at % 3], width: 2, dash: DASHES[at % 3], points: { show: true, size: 5, filter: lone }, spanGaps: false,
      }))],
    };
    this.plot = new uPlot(options, data, this.node);
  }

  show(points) {
    const data = [points.at_s, ...this.series.map((one) => points[one.key])];
    if (this.log) for (let at = 1; at < data.length; at += 1) data[at] = data[at].map((value) => (value > 0 ? value : null));
    // One point is no line, and gives the axis of time nothing to go by.
    const isEmpty = points.at_s.length < 2 || data.slice(1).every((values) => values.every((value) => value === null));
    if (this.plot && (isEmpty || this.node.clientWidth === 0)) {
      this.plot.destroy();
      this.plot = null;
    }
    if (!isEmpty && this.node.clientWidth > 0) {
      if (this.plot) this.plot.setData(data);
      else this.make(data);
    }
    const names = ["solid", "dashed", "dotted"];
    const last = this.series.map((one, at) => {
      const value = points[one.key].at(-1);
      return `${one.label} (${names[at % 3]}) ${value === null || value === undefined ? UNKNOWN : number(value) + this.unit}`;
    });
    setText(this.text, isEmpty ? "Nothing yet." : `Last second: ${last.join(", ")}.`);
  }

  forget() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }
}

// The last points, with the new ones behind them.
function append(points, more, isFresh) {
  const found = {};
  for (const key of Object.keys(more)) {
    const before = isFresh || !points ? [] : points[key];
    found[key] = before.concat(more[key]).slice(-POINTS_MAX);
  }
  for (const key of ["arrived", "completed", "not_completed"]) {
    found[`${key}_per_s`] = found[key].map((count, at) => (found.span_s[at] > 0.01 ? count / found.span_s[at] : null));
  }
  return found;
}

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const chart of charts) {
      if (chart.plot) chart.plot.setSize({ width: Math.max(200, chart.node.clientWidth), height: 190 });
    }
  }, 150);
});
