// Other translations of the same sentence: the n best, and some drawn at random.

import { find, make, percent, say } from "./dom.js";
import { Latest } from "./questions.js";

export class Variants {
  constructor(missing, failed) {
    this.missing = missing;
    this.text = "";
    this.seed = 1;
    const show = (id) => ({ answered: (answer) => list(id, answer), failed });
    this.best = new Latest("n-best", show("n-best"));
    this.samples = new Latest("samples", show("samples"));
    find("n-best").hidden = "beam" in missing;
    find("samples").hidden = "sample" in missing;
    say(find("missing-variants"), [missing.beam, missing.sample].filter(Boolean).join(" "));
    find("temperature").addEventListener("input", () => {
      find("temperature-value").textContent = Number(find("temperature").value).toFixed(1);
      this.draw();
    });
    find("again").addEventListener("click", () => {
      this.seed += 1000;
      this.draw();
    });
  }

  show(text) {
    find("variants").hidden = false;
    if (text === this.text) return; // it was shown before another beginning was chosen
    this.text = text;
    if (!("beam" in this.missing)) this.best.ask({ text });
    this.draw();
  }

  draw() {
    if ("sample" in this.missing || !this.text) return;
    const temperature = Number(find("temperature").value);
    this.samples.ask({ text: this.text, temperature, seed: this.seed });
  }

  hide() {
    this.text = "";
    this.best.forget();
    this.samples.forget();
    find("variants").hidden = true;
  }
}

function list(id, { translations }) {
  const rows = translations.map(({ text, log_prob, score }) => {
    let numbers = ` ${percent(log_prob)}, log-probability ${log_prob.toPrecision(3)}`;
    if (score !== undefined) numbers += `, score ${score.toPrecision(3)}`;
    const translation = make("span", { dir: "auto" }, text);
    return make("li", {}, translation, make("span", { class: "number" }, numbers));
  });
  find(id).querySelector("ol").replaceChildren(...rows);
}
