// Attention maps of all layers and heads as thumbnails, and the selected one as a table.

import { moveByArrows } from "./arrow_keys.js";
import { displayed, find, make, setNote } from "./dom.js";

const MAX_TOKENS = 80; // rows and columns of the table at most
const START = "<s>"; // the first input token of the decoder
const MEAN = -1; // instead of a head's index
const SIDES = {
  cross: ["predicted target token", "source token"],
  encoder: ["source token", "source token"],
  decoder: ["decoder input token", "decoder input token"],
};

export class AttentionMaps {
  constructor() {
    this.kind = "cross";
    this.layer = null;
    this.selected = null; // the index of the selected target token
    this.head = MEAN;
    find("kinds").addEventListener("change", (event) => {
      this.kind = event.target.value;
      this.draw();
    });
    // Pictures are painted in the colours of the page, which may change.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show({ source, forced, steps, attention }) {
    const target = steps.map((step) => step.token);
    const keys = [START, ...forced, ...target.slice(0, -1)];
    const inputs = keys.slice(forced.length); // a language's token, or START, and those after it
    this.tokens = { cross: [target, source], encoder: [source, source], decoder: [inputs, keys] };
    this.attention = attention;
    this.selected = null;
    const layers = attention.cross.length;
    // The layer that comes closest to alignments made by hand; see `Translator.align`.
    this.layer ??= Math.max(layers - 2, Math.floor(layers / 2));
    find("attention").hidden = !steps.length;
    if (steps.length) this.draw();
  }

  hide() {
    this.attention = null;
    find("attention").hidden = true;
  }

  // The cross-attention weights of a target token.
  weightsOf(place) {
    return this.attention && this.map("cross")[place];
  }

  // Highlights the row of the selected target token: in cross-attention the step that predicts it,
  // in decoder self-attention the same step. The encoder has no row for it.
  select(place) {
    this.selected = place;
    this.highlightRow();
  }

  highlightRow() {
    const place = this.kind === "encoder" ? null : this.selected;
    [...find("map").querySelectorAll("tbody tr")].forEach((row, i) => {
      row.classList.toggle("selected", i === place);
      row.firstElementChild.ariaCurrent = i === place ? "true" : null;
    });
  }

  // The selected layer, or the last one of a stack that has fewer.
  layerOf(kind) {
    return Math.min(this.layer, this.attention[kind].length - 1);
  }

  map(kind, layer = this.layerOf(kind), head = this.head) {
    const heads = this.attention[kind][layer];
    if (head !== MEAN) return heads[head];
    return heads[0].map((row, i) =>
      row.map((_, j) => heads.reduce((sum, one) => sum + one[i][j], 0) / heads.length),
    );
  }

  draw() {
    if (!this.attention) return;
    this.drawHeads();
    this.drawTable();
  }

  drawHeads() {
    const paint = painter();
    const shown = this.layerOf(this.kind);
    const rows = this.attention[this.kind].map((heads, layer) => {
      const numbers = [MEAN, ...heads.keys()];
      return numbers.map((head) => {
        const picture = paint(this.map(this.kind, layer, head));
        const chosen = layer === shown && head === this.head;
        const label = nameMap(layer, head);
        const button = make(
          "button",
          { type: "button", role: "radio", "aria-checked": String(chosen), "aria-label": label, title: label },
          picture,
        );
        button.addEventListener("click", () => this.choose(layer, head));
        button.place = [layer, head];
        return button;
      });
    });
    const lines = rows.map((row, layer) =>
      make("div", { class: "layer" }, make("span", { class: "number" }, `layer ${layer + 1}`), ...row),
    );
    const container = find("heads");
    const focused = container.contains(document.activeElement);
    container.replaceChildren(...lines);
    const start = rows[shown][this.head + 1];
    moveByArrows(container, rows, start, (button) => this.choose(...button.place));
    if (focused) start.focus();
  }

  choose(layer, head) {
    [this.layer, this.head] = [layer, head];
    this.draw();
  }

  drawTable() {
    const [queries, keys] = this.tokens[this.kind];
    const [queryName, keyName] = SIDES[this.kind];
    const name = nameMap(this.layerOf(this.kind), this.head);
    find("map-title").textContent = `${name}: each row is a ${queryName}, each column a ${keyName}`;
    const weights = this.map(this.kind).slice(0, MAX_TOKENS).map((row) => row.slice(0, MAX_TOKENS));
    const columns = keys.slice(0, MAX_TOKENS).map((key) => make("th", { scope: "col" }, columnLabel(key)));
    const cells = weights.map((row) => row.map((weight) => cell(weight)));
    const table = find("map");
    table.replaceChildren(
      make("thead", {}, make("tr", {}, make("td"), ...columns)),
      make(
        "tbody",
        {},
        ...cells.map((row, i) => make("tr", {}, rowLabel(queries[i]), ...row)),
      ),
    );
    this.highlightRow();
    this.showWeights(table, moveByArrows(table, cells), cells, weights, queries, keys);
    const longest = Math.max(queries.length, keys.length);
    setNote(find("truncated"), longest > MAX_TOKENS ? `Only the first ${MAX_TOKENS} of ${longest} tokens are shown.` : "");
  }

  showWeights(table, signal, cells, weights, queries, keys) {
    const places = new Map();
    cells.forEach((row, i) => row.forEach((one, j) => places.set(one, [i, j])));
    const showWeight = (event) => {
      const place = places.get(event.target.closest("td"));
      if (!place) return;
      const [i, j] = place;
      find("weight").textContent =
        `${displayed(queries[i])} \u2192 ${displayed(keys[j])}: ${weights[i][j].toFixed(3)}`;
    };
    for (const event of ["pointerover", "focusin"]) {
      table.addEventListener(event, showWeight, { signal });
    }
  }
}

// Layers and heads are numbered from 1.
function nameMap(layer, head) {
  return `layer ${layer + 1}, ${head === MEAN ? "mean over heads" : `head ${head + 1}`}`;
}

function columnLabel(token) {
  const name = displayed(token);
  const kind = [...name].length < 3 ? "short" : "long"; // short labels are not rotated
  return make("span", { class: kind, dir: "auto", title: name }, name);
}

function rowLabel(token) {
  return make("th", { scope: "row", dir: "auto", title: displayed(token) }, displayed(token));
}

function cell(weight) {
  const number = make("span", { class: "unseen" }, weight.toFixed(2));
  return make("td", { tabindex: "-1", style: { "--weight": weight } }, number);
}

// Returns a function that paints weights, one pixel each, in the page's colours.
function painter() {
  const style = getComputedStyle(document.documentElement);
  const [from, to] = ["--none", "--full"].map((name) => {
    const number = parseInt(style.getPropertyValue(name).trim().slice(1), 16);
    return [number >> 16, (number >> 8) & 255, number & 255];
  });
  return (weights) => {
    const [height, width] = [weights.length, weights[0].length];
    const canvas = make("canvas", { width, height, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    weights.flat().forEach((weight, i) => {
      from.forEach((low, channel) => {
        image.data[4 * i + channel] = low + weight * (to[channel] - low);
      });
      image.data[4 * i + 3] = 255;
    });
    context.putImageData(image, 0, 0);
    return canvas;
  };
}
