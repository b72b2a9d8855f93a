// The attention of all layers and heads as small pictures, and one of them as a table.

import { moveByArrows } from "./arrow_keys.js";
import { find, make, say, shown } from "./dom.js";

const MAX_TOKENS = 80; // tokens of a side that the table shows
const START = "<s>"; // what the decoder reads first
const MEAN = -1; // instead of a head's number
const SIDES = {
  cross: ["token to be written", "token read"],
  encoder: ["token read", "token read"],
  decoder: ["token known so far", "token known so far"],
};

export class AttentionMaps {
  constructor() {
    this.kind = "cross";
    this.layer = null;
    this.head = MEAN;
    find("kinds").addEventListener("change", (event) => {
      this.kind = event.target.value;
      this.draw();
    });
    // Pictures are painted in the colours of the page, which may change.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show({ source, steps, attention }) {
    const written = steps.map((step) => step.token);
    const known = [START, ...written.slice(0, -1)];
    this.tokens = { cross: [written, source], encoder: [source, source], decoder: [known, known] };
    this.attention = attention;
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

  // What the token to be written at a place attends to in the source.
  weightsOf(place) {
    return this.attention && this.map("cross")[place];
  }

  map(kind, layer = this.layer, head = this.head) {
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
    const rows = this.attention[this.kind].map((heads, layer) => {
      const numbers = [MEAN, ...heads.keys()];
      return numbers.map((head) => {
        const picture = paint(this.map(this.kind, layer, head));
        const chosen = layer === this.layer && head === this.head;
        const label = `layer ${layer}, ${nameOf(head)}`;
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
      make("div", { class: "layer" }, make("span", { class: "number" }, `layer ${layer}`), ...row),
    );
    const container = find("heads");
    const focused = container.contains(document.activeElement);
    container.replaceChildren(...lines);
    const start = rows[this.layer][this.head + 1];
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
    const name = `layer ${this.layer}, ${nameOf(this.head)}`;
    find("map-title").textContent = `${name}: each row is a ${queryName}, each column a ${keyName}`;
    const weights = this.map(this.kind).slice(0, MAX_TOKENS).map((row) => row.slice(0, MAX_TOKENS));
    const columns = keys.slice(0, MAX_TOKENS).map((key) => make("th", { scope: "col" }, head(key)));
    const cells = weights.map((row) => row.map((weight) => cell(weight)));
    const table = find("map");
    table.replaceChildren(
      make("thead", {}, make("tr", {}, make("td"), ...columns)),
      make(
        "tbody",
        {},
        ...cells.map((row, i) => make("tr", {}, side(queries[i]), ...row)),
      ),
    );
    this.tellWeights(table, moveByArrows(table, cells), cells, weights, queries, keys);
    const longest = Math.max(queries.length, keys.length);
    say(find("cut"), longest > MAX_TOKENS ? `The first ${MAX_TOKENS} of up to ${longest} tokens are shown.` : "");
  }

  tellWeights(table, signal, cells, weights, queries, keys) {
    const places = new Map();
    cells.forEach((row, i) => row.forEach((one, j) => places.set(one, [i, j])));
    const tell = (event) => {
      const place = places.get(event.target.closest("td"));
      if (!place) return;
      const [i, j] = place;
      find("weight").textContent =
        `${shown(queries[i])} \u2192 ${shown(keys[j])}: ${weights[i][j].toFixed(3)}`;
    };
    for (const event of ["pointerover", "focusin"]) table.addEventListener(event, tell, { signal });
  }
}

function nameOf(head) {
  return head === MEAN ? "mean of the heads" : `head ${head}`;
}

function head(token) {
  const name = shown(token);
  const kind = [...name].length < 3 ? "short" : "long"; // these stand upright
  return make("span", { class: kind, dir: "auto", title: name }, name);
}

function side(token) {
  return make("th", { scope: "row", dir: "auto", title: shown(token) }, shown(token));
}

function cell(weight) {
  const number = make("span", { class: "unseen" }, weight.toFixed(2));
  return make("td", { tabindex: "-1", style: { "--weight": weight } }, number);
}

// A function that paints weights, a pixel each, from the page's surface to its colour of weights.
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
