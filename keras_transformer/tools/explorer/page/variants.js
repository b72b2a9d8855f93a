// Other translations of the same sentence, by beam search and random sampling.

import { find, make, percent, setNote } from "./dom.js";
import { Latest } from "./questions.js";

export class Variants {
  constructor(missing, failed) {
    this.missing = missing;
    this.text = "";
    this.seed = 1;
    const show = (id) => ({ answered: (answer) => showList(id, answer), failed });
    this.best = new Latest("n-best", show("n-best"));
    this.samples = new Latest("samples", show("samples"));
    find("n-best").hidden = "beam" in missing;
    find("samples").hidden = "sample" in missing;
    setNote(find("missing-variants"), [missing.beam, missing.sample].filter(Boolean).join(" "));
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
    if (!("beam" in this.missing)) this.best.ask({ text });
    this.drawSamples();
  }

  drawSamples() {
    if ("sample" in this.missing || !this.text) return;
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
