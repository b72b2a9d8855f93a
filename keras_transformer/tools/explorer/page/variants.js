// Other translations of the same sentence, by beam search and random sampling.

import { find, make, percent } from "./dom.js";
import { Latest } from "./questions.js";

export class Variants {
  constructor(failed) {
    this.text = "";
    this.seed = 1;
    const show = (id) => ({ answered: (answer) => showList(id, answer), failed });
    this.best = new Latest("n-best", show("n-best"));
    this.samples = new Latest("samples", show("samples"));
    find("temperature").addEventListener("input", () => {
      find("temperature-value").textContent = Number(find("temperature").value).toFixed(1);
      this.drawSamples();
    });
    find("again").addEventListener("click", () => {
      this.seed += 1000;
      this.drawSamples();
    });
  }

  show(text) {
    find("variants").hidden = false;
    if (text === this.text) return; // the prefix has changed, which these do not have
    this.text = text;
    this.best.ask({ text });
    this.drawSamples();
  }

  drawSamples() {
    if (!this.text) return;
    const temperature = Number(find("temperature").value);
    this.samples.ask({ text: this.text, temperature, seed: this.seed });
  }

  hide() {
    this.text = "";
    this.best.cancel();
    this.samples.cancel();
    find("variants").hidden = true;
  }
}

function showList(id, { translations }) {
  const rows = translations.map(({ text, log_prob, score }) => {
    let numbers = ` ${percent(log_prob)}, log-probability ${log_prob.toPrecision(3)}`;
    if (score !== undefined) numbers += `, score ${score.toPrecision(3)}`;
    const translation = make("span", { dir: "auto" }, text);
    return make("li", {}, translation, make("span", { class: "number" }, numbers));
  });
  find(id).querySelector("ol").replaceChildren(...rows);
}
