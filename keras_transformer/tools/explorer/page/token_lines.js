// The source tokens, and the target tokens with their alternatives.

import { moveByArrows } from "./arrow_keys.js";
import { displayed, find, make, percent } from "./dom.js";

const PAD = 0; // padding cannot be part of a prefix

export class TokenLines {
  // Calls `setPrefix` with the ids of the new prefix, `hover` with the index of the target token
  // under the pointer or null, and `select` with the index of the selected token or null.
  constructor({ setPrefix, hover, select }) {
    this.setPrefix = setPrefix;
    this.hover = hover;
    this.select = select;
    this.open = null; // the index of the selected token, whose alternatives are shown
    find("release").addEventListener("click", () => {
      this.setPrefix([]);
      find("text").focus();
    });
    find("alternatives").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close(true);
    });
  }

  show({ source, steps }, prefix) {
    this.steps = steps;
    this.focusNext = this.open !== null && prefix.length === this.open + 1 ? this.open : null;
    this.close(false);
    this.sourceTokens = source.map((token) => make("span", { role: "listitem", dir: "auto" }, displayed(token)));
    find("source").replaceChildren(...this.sourceTokens);
    this.buttons = steps.map((step, place) => this.button(step, place, place < prefix.length));
    find("target").replaceChildren(...this.buttons);
    const focused = this.buttons[this.focusNext ?? 0];
    moveByArrows(find("target"), [this.buttons], focused);
    if (this.focusNext !== null) focused?.focus();
    const number = Math.min(prefix.length, steps.length);
    find("chosen").hidden = !number;
    find("chosen").firstElementChild.textContent =
      `The translation has a prefix of ${number} selected token${number === 1 ? "" : "s"}. `;
    find("tokens").hidden = !steps.length;
  }

  button(step, place, chosen) {
    const button = make(
      "button",
      {
        type: "button",
        class: chosen ? "token chosen" : "token",
        dir: "auto",
        "aria-expanded": "false",
        "aria-controls": "alternatives",
        "aria-label":
          `token ${place + 1}: ${displayed(step.token)}, ${percent(step.log_prob)}` +
          (chosen ? ", part of the prefix" : ""),
        style: { "--weight": Math.exp(step.log_prob) },
      },
      displayed(step.token),
    );
    button.addEventListener("click", () => this.toggle(place));
    for (const event of ["pointerenter", "focus"]) {
      button.addEventListener(event, () => this.hover(place));
    }
    for (const event of ["pointerleave", "blur"]) {
      button.addEventListener(event, () => this.hover(null));
    }
    return button;
  }

  toggle(place) {
    if (this.open === place) return this.close(true);
    this.close(false);
    this.open = place;
    this.buttons[place].setAttribute("aria-expanded", "true");
    this.select(place);
    const step = this.steps[place];
    find("alternatives-heading").textContent = `Alternatives to token ${place + 1}, ${displayed(step.token)}`;
    const choices = step.best.map((one) => this.choice(one, place));
    find("alternatives").querySelector("ol").replaceChildren(...choices.map((choice) => make("li", {}, choice)));
    find("alternatives").hidden = false;
    choices.find((choice) => !choice.disabled)?.focus();
  }

  choice(one, place) {
    const taken = one.id === this.steps[place].id;
    const choice = make(
      "button",
      { type: "button", class: "choice", style: { "--weight": Math.exp(one.log_prob) } },
      make("span", { dir: "auto" }, displayed(one.token)),
      make("span", { class: "number" }, `${percent(one.log_prob)}${taken ? ", current" : ""}`),
    );
    choice.disabled = one.id === PAD;
    choice.addEventListener("click", () => {
      const before = this.steps.slice(0, place).map((step) => step.id);
      this.setPrefix([...before, one.id]);
    });
    return choice;
  }

  close(focus) {
    if (this.open === null) return;
    const button = this.buttons[this.open];
    button.setAttribute("aria-expanded", "false");
    this.open = null;
    this.select(null);
    find("alternatives").hidden = true;
    if (focus) button.focus();
  }

  // Shades the source tokens by their weights; without weights, removes the shade.
  shade(weights) {
    this.sourceTokens.forEach((token, i) => token.style.setProperty("--weight", weights?.[i] ?? 0));
  }

  hide() {
    this.open = null;
    find("alternatives").hidden = true;
    find("tokens").hidden = true;
  }
}
